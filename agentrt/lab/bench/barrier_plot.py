"""Draws two runs of one agent over the same axis of engine steps: calls as bars, edges as lines."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from agentrt.graph import Node
from agentrt.lab.bench.barrier import step_name
from agentrt.runtime.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CRITICAL = "#d33333"


def draw_runs(runs: Mapping[str, Run], path: Path) -> None:
    """One chart per run, below each other. The critical path is outlined, its edges are red."""
    # Not pyplot: it keeps every figure, and looks for a screen.
    from matplotlib.figure import Figure

    order = [step_name(node.scope) for node in next(iter(runs.values())).dag.nodes()]
    rows = {name: row for row, name in enumerate(order)}
    figure = Figure(figsize=(9, 0.8 + len(runs) * (0.6 + 0.32 * len(rows))), dpi=150)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(len(runs), 1, squeeze=False, sharex=True)[:, 0]
    for axis, (title, run) in zip(axes, runs.items(), strict=True):
        _draw(axis, run, rows)
        axis.set_title(f"{title}: {run.last_step - (run.first_step or 0) + 1} steps", loc="left")
    axes[-1].set_xlabel("engine steps since the program began")
    figure.savefig(path)


def _draw(axis: Axes, run: Run, rows: Mapping[str, int]) -> None:
    critical = run.dag.critical_path().nodes
    links = set(pairwise(critical))
    nodes = run.dag.nodes()
    for node in nodes:
        start, end = _span(node, run)
        row = rows[step_name(node.scope)]
        edge = _CRITICAL if node.id in critical else "white"
        axis.barh(row, end - start, left=start, height=0.7, color="C0", edgecolor=edge, lw=1.5)
        for parent in node.parents:
            _link(axis, run, nodes[parent], node, rows, (parent, node.id) in links)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)


def _link(
    axis: Axes, run: Run, parent: Node, child: Node, rows: Mapping[str, int], critical: bool
) -> None:
    at = (_span(parent, run)[1], rows[step_name(parent.scope)])
    to = (_span(child, run)[0], rows[step_name(child.scope)])
    colour, width = (_CRITICAL, 1.6) if critical else ("#555555", 0.9)
    arrow = {"arrowstyle": "-|>", "color": colour, "lw": width, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", xy=to, xytext=at, arrowprops=arrow)


def _span(node: Node, run: Run) -> tuple[int, int]:
    """The call's first step, and the one after its last, from the program's beginning."""
    first = run.first_step or 0
    if node.report is None:
        return 0, 0
    return node.report.arrived_step - first, node.report.finished_step - first + 1
