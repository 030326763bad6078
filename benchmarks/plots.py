"""Drawings of latency by load, with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.cli.plots import MARKERS, new_figure
from agentrt.lab.reports.compare import Series
from benchmarks.tables import ALL, axis_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_curves(
    cells: Sequence[Series], path: Path, measures: Sequence[str] = ("mean_s", "p99_s")
) -> None:
    """Draw latency against load: a line for each policy, a column for each workload
    (`draw_panels`).
    """
    sources = dict.fromkeys(cell.setting.source.name for cell in cells)
    draw_panels(
        {name: [c for c in cells if c.setting.source.name == name] for name in sources},
        path,
        measures,
    )


def draw_panels(
    panels: Mapping[str, Sequence[Series]],
    path: Path,
    measures: Sequence[str],
    levels: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Draw a column for each panel and a row for each measure, with dotted lines at ``levels``.

    A line shows the median over the seeds, and the band around the line shows the spread. Bursts
    (b0.8) are to the right of the steady loads.
    """
    figure = new_figure(1 + 4.2 * len(panels), 0.8 + 2.8 * len(measures))
    axes = figure.subplots(len(measures), len(panels), squeeze=False)
    for row, measure in enumerate(measures):
        for column, (title, cells) in enumerate(panels.items()):
            axis = axes[row][column]
            draw_panel(axis, cells, measure)
            axis.set_ylabel(ALL[measure] if column == 0 else "")
            axis.set_title(title if row == 0 else "", fontsize=10)
            for level in (levels or {}).get(title, ()):
                axis.axhline(level, color="grey", linestyle=":", linewidth=0.8)
    lines = axes[-1][0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path)


def draw_panel(axis: Axes, cells: Sequence[Series], measure: str) -> None:
    """Draw a measure against the load, with a line for each policy."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """A formatter that labels the usual ticks with plain numbers instead of powers of ten."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    loads = list(dict.fromkeys(cell.setting.label for cell in sorted(cells, key=_by_load)))
    for number, policy in enumerate(dict.fromkeys(cell.name for cell in cells)):
        style: dict[str, Any] = {"color": f"C{number}", "marker": MARKERS[number % len(MARKERS)]}
        mine = sorted((cell for cell in cells if cell.name == policy), key=_by_load)
        # No line leads to bursts, because they are not a higher load.
        for bursty, label in ((False, policy), (True, None)):
            shown = [cell for cell in mine if (cell.setting.pressure.kind == "bursts") is bursty]
            at = [loads.index(cell.setting.label) for cell in shown]
            values = [cell.values(measure) for cell in shown]
            low, high = [min(v) for v in values], [max(v) for v in values]
            axis.plot(at, [cell.median(measure) for cell in shown], label=label, **style)
            axis.fill_between(at, low, high, alpha=0.15, color=style["color"])
            axis.vlines(at, low, high, alpha=0.3, color=style["color"])
    axis.set_xticks(range(len(loads)), loads)
    axis.set_xlabel(axis_of(cells))
    axis.set_yscale("log")
    for side in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        side(Plain(minor_thresholds=(1, 0.4)))
    axis.grid(alpha=0.3)


def _by_load(cell: Series) -> tuple[bool, float, int]:
    pressure = cell.setting.pressure
    return (pressure.kind == "bursts", pressure.value, cell.setting.programs or 0)
