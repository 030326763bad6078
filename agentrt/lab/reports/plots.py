"""Functions that all drawings share. They need matplotlib, which the extra ``plot`` installs."""

from __future__ import annotations

import importlib.util
from typing import Any

from agentrt.errors import ConfigError

SUFFIXES = (".png", ".svg", ".pdf")
"""The allowed endings of a drawing's file."""

MARKERS = "osD^vP*X<>h"


def check_matplotlib() -> None:
    """Raise `ConfigError` if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--plot needs matplotlib; install it: pip install "agentrt[plot]"')


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    # Not pyplot, which keeps every figure in memory and looks for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")
