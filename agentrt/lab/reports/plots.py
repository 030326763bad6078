"""What drawings share, with matplotlib, which comes with the extra ``plot``."""

from __future__ import annotations

import importlib.util
from typing import Any

from agentrt.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")
"""What a drawing's file may end in."""

MARKERS = "osD^vP*X<>h"


def check_matplotlib() -> None:
    """Raise `ConfigError` if nothing can be drawn here."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--plot needs matplotlib; install it: pip install "agentrt[plot]"')


def new_figure(width: float, height: float) -> Any:
    """An empty drawing of so many inches."""
    # Not pyplot: it keeps every figure, and looks for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")
