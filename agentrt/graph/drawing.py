"""Drawing a DAG as an SVG image, which notebooks and browsers show without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from statistics import fmean

from agentrt.graph.dag import ExecutionDAG
from agentrt.graph.export import caption
from agentrt.graph.node import Node, NodeState

_BOX_W, _BOX_H, _STEP_X, _STEP_Y, _EDGE = 150, 52, 170, 88, 12
_SHOWN = 22
"""Number of characters that fit into a line of a box."""
_FILLS = {NodeState.WAITING: "#eee", NodeState.RUNNING: "#cfe5ff", NodeState.DONE: "#e3f4e3"}
_ENDED_BADLY = "#fbdcdc"
_CRITICAL = '#d33" stroke-width="2.5'
_ORDINARY = "#888"


def to_svg(dag: ExecutionDAG) -> str:
    """Draw the DAG from top to bottom, each node below its parents.

    Waiting nodes are grey, running nodes are blue, done nodes are green, and all other ended nodes
    are light red. The critical path is drawn with red lines.
    """
    nodes = dag.nodes()
    at = _places(nodes)
    path = dag.critical_path().nodes
    critical, steps = set(path), set(pairwise(path))
    left = min((x for x, _ in at.values()), default=0) - _EDGE
    width = max((x + _BOX_W for x, _ in at.values()), default=0) - left + _EDGE
    height = max((y + _BOX_H for _, y in at.values()), default=0) + 2 * _EDGE
    parts = [_edge(at[p], at[n.id], (p, n.id) in steps) for n in nodes for p in n.parents]
    parts += [_box(node, at[node.id], node.id in critical) for node in nodes]
    title = escape(f"{dag.program_type} {dag.program_id}: {dag.state}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left} {-_EDGE} {width} {height}"'
        f' width="{width}" style="max-width:100%;height:auto" role="img"'
        f' font-family="sans-serif" font-size="12"><title>{title}</title>{"".join(parts)}</svg>'
    )


def _places(nodes: Sequence[Node]) -> dict[int, tuple[float, float]]:
    """Return the position of each node's box. Nodes of the same depth are in one row, and are
    ordered by the positions of their parents.
    """
    rows: dict[int, list[Node]] = {}
    for node in nodes:
        rows.setdefault(node.depth, []).append(node)
    at: dict[int, tuple[float, float]] = {}
    for depth, row in sorted(rows.items()):
        row.sort(key=lambda node: fmean(at[p][0] for p in node.parents) if node.parents else 0.0)
        for index, node in enumerate(row):
            at[node.id] = (index - (len(row) - 1) / 2) * _STEP_X, depth * _STEP_Y
    return at


def _edge(above: tuple[float, float], below: tuple[float, float], critical: bool) -> str:
    (x, y), (to_x, to_y) = above, below
    x, y, to_x = x + _BOX_W / 2, y + _BOX_H, to_x + _BOX_W / 2
    bend = (to_y - y) / 2
    curve = f"M{x} {y}C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y}"
    return f'<path d="{curve}" fill="none" stroke="{_CRITICAL if critical else _ORDINARY}"/>'


def _box(node: Node, place: tuple[float, float], critical: bool) -> str:
    x, y = place
    lines = caption(node)
    first = y + _BOX_H / 2 + 4 - 7 * (len(lines) - 1)
    texts = "".join(
        f'<text x="{x + _BOX_W / 2}" y="{first + 14 * index}" text-anchor="middle" fill="#222">'
        f"{escape(line if len(line) <= _SHOWN else line[: _SHOWN - 1] + '…')}</text>"
        for index, line in enumerate(lines)
    )
    return (
        f'<g><title>{escape(" · ".join(lines))}</title><rect x="{x}" y="{y}" width="{_BOX_W}"'
        f' height="{_BOX_H}" rx="6" fill="{_FILLS.get(node.state, _ENDED_BADLY)}"'
        f' stroke="{_CRITICAL if critical else _ORDINARY}"/>{texts}</g>'
    )
