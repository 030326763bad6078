"""Drawings of scores, and functions that all drawings share. Drawings need matplotlib, which the
extra ``plot`` installs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrt.cli.values import check_output
from agentrt.errors import ConfigError
from agentrt.extras import install_command

SUFFIXES = (".png", ".svg", ".pdf")
"""The allowed endings of a drawing's file."""

MARKERS = "osD^vP*X<>h"


def check_matplotlib() -> None:
    """Raise `ConfigError` if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"--plot needs matplotlib; run: {install_command('plot')}")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    # Do not use pyplot, which keeps every figure in memory and looks for a screen.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def check_plot(path: Path | None) -> None:
    """Raise `ConfigError` if ``path`` cannot be written or has none of the `SUFFIXES`, or if
    matplotlib is not installed. Do nothing if ``path`` is None.
    """
    if path is not None:
        check_output("--plot", path, SUFFIXES)
        check_matplotlib()


def draw_scores(files: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the mean and the interval of each score, as `summarize` returns them, with a row for
    each file of results.
    """
    names = list(dict.fromkeys(name for scores in files.values() for name in scores))
    figure = new_figure(6.0, 0.6 + len(names) * (0.55 + 0.25 * len(files)))
    for axis, name in zip(figure.subplots(len(names), squeeze=False)[:, 0], names, strict=True):
        rows = list(enumerate(reversed(list(files.items()))))
        for row, (_, scores) in rows:
            score = scores.get(name, {})
            if score.get("mean") is None:
                continue
            mean, ends = score["mean"], (score["low"], score["high"])
            low, high = (mean if end is None else end for end in ends)
            spread = [[max(0.0, mean - low)], [max(0.0, high - mean)]]
            axis.errorbar([mean], [row], xerr=spread, fmt="o", capsize=3, color=f"C{row}")
            axis.annotate(f"{mean:.3g}", (mean, row), (0, 6), textcoords="offset points")
        axis.set_yticks([row for row, _ in rows], [label for _, (label, _) in rows])
        axis.set_ylim(-0.6, len(files) - 0.2)
        axis.set_title(f"{name}: mean and 95% interval", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(path)
