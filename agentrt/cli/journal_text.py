"""Recorded programs for people, and whole as JSON."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

from agentrt.journal.analysis.comparison import comparison
from agentrt.journal.analysis.reading import History
from agentrt.journal.analysis.rendering import answer_of, parsed, program_json, question_of, short
from agentrt.journal.past import PastNode

_MOST = 20
_LISTED = ("id", "type", "state", "started", "wall_s", "calls", "prompt_tokens", "output_tokens")


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in cells)
    return [line.rstrip() for line in lines]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def history_json(found: History) -> dict[str, Any]:
    """A program with its nodes as JSON: questions and answers are as they are recorded."""
    outcome = found.root.end.outcome if found.root and found.root.end else ""
    return {
        **program_json(found),
        "outcome": parsed("outcome", outcome),
        "nodes": [_node_json(node) for node in found.nodes.values()],
    }


def _node_json(node: PastNode) -> dict[str, Any]:
    ended = {} if node.end is None else node.end._asdict()
    row = {**node.start._asdict(), **ended, "state": node.state}
    return {name: parsed(name, value) for name, value in row.items()} | {"asked": node.asked}


def list_text(found: Sequence[History]) -> list[str]:
    """Programs as a table."""
    rows = [(*_LISTED, "tenant")]
    for one in map(program_json, found):
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one["started"]))
        rows.append(tuple({**one, "started": began}[name] for name in rows[0]))
    return aligned(rows)


def history_text(found: History, *, full: bool) -> Iterator[str]:
    """A program with its nodes, for people; with ``full`` their whole questions and answers."""
    yield from list_text([found])
    if fork := json.loads(found.program.options).get("fork"):
        yield "forked: " + ", ".join(f"{name} {value}" for name, value in fork.items() if value)
    if found.program.content != "full":
        yield f"questions and answers are not kept (--journal-content {found.program.content})"
    if not found.nodes:
        yield "it came to no node, or its nodes are not kept any more (--journal-keep)"
        return
    ways = _ways(found)
    lines = aligned([_row(found.nodes[place], len(way)) for place, way in ways.items()])
    for line, place in zip(lines, ways, strict=True):
        node = found.nodes[place]
        said = question_of(node, whole=full), answer_of(node)
        if full:
            yield line
            named = zip(("asked", "answered"), said, strict=True)
            yield from (textwrap.indent(f"{name}: {text}", "    ") for name, text in named if text)
        else:
            yield f"{line}  {' > '.join(filter(None, map(short, said)))}".rstrip()


def _ways(found: History) -> dict[str, list[str]]:
    """The tasks and nodes that each node is in, and itself: 0.2#1 is in 0.2. What is in one task
    comes together, and tasks come as their first node began.
    """
    ways, ranks = dict[str, list[str]](), dict[str, int]()
    for place in found.nodes:
        code = place.partition("!")[0]
        ways[place] = [code[: edge.start()] for edge in re.finditer(r"[.#]\d", code)]
        ways[place] += dict.fromkeys((code, place))
        for one in ways[place]:
            ranks.setdefault(one, len(ranks))
    return dict(sorted(ways.items(), key=lambda item: [ranks[one] for one in item[1]]))


def _row(node: PastNode, depth: int) -> tuple[Any, ...]:
    start, end = node.start, node.end
    said = parsed("account", end.account) if end and start.kind == "call" else None
    tokens = f"{said.get('prompt_tokens', 0)}>{said.get('output_tokens', 0)}" if said else ""
    took = None if end is None else end.ended - start.started
    place = f"{'  ' * (depth - 2)}{start.node}"
    return place, start.kind, short(start.name), node.state, took, tokens


def comparison_text(one: History, other: History) -> Iterator[str]:
    """Where two programs part, and what each cost, for people."""
    told = comparison(one, other)
    if told["input"]:
        yield f"input: {told['input']}"
    found = told["differences"]
    where = f"; they part at {found[0]['node']}" if found else ""
    yield f"{told['same']} nodes are the same in {one.program.id} and {other.program.id}{where}"
    for each in found[:_MOST]:
        yield from (f"  {each['node']}  {words}" for words in each["what"])
    if len(found) > _MOST:
        yield f"  … and {len(found) - _MOST} more nodes (--json has all)"
    a, b = told["programs"]
    yield from aligned([(name, a[name], b[name]) for name in a])
