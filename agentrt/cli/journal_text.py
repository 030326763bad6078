"""Recorded programs as text for people, and as JSON."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrt.journal.analysis.comparison import comparison
from agentrt.journal.analysis.reading import History
from agentrt.journal.analysis.rendering import answer_of, parsed, program_json, question_of, short
from agentrt.journal.past import PastNode

_MOST = 20
_HEAD = ("place", "kind", "name", "state", "seconds", "tokens in > out")
_LISTED = ("id", "type", "state", "started", "wall_s", "calls", "prompt_tokens", "output_tokens")


def aligned(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Format rows as lines. Each column is as wide as its widest cell."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in cells)
    return [line.rstrip() for line in lines]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def history_json(program: History, only: str | None) -> dict[str, Any]:
    """Return a run as JSON: its costs, its outcome, and its nodes with their recorded requests and
    answers. If ``only`` is the place of a node, the nodes are this node alone.

    The nodes are an iterator, because each call of a growing chat has the whole chat in its
    request: together, the requests may be larger than the memory.
    """
    outcome = program.root.end.outcome if program.root and program.root.end else ""
    return {
        **program_json(program),
        "outcome": parsed("outcome", outcome),
        "nodes": (
            _node_json(node) for place, node in program.nodes.items() if only in (None, place)
        ),
    }


def _node_json(node: PastNode) -> dict[str, Any]:
    ended = {} if node.end is None else node.end._asdict()
    row = {**node.start._asdict(), **ended, "state": node.state}
    fields = {name: parsed(name, value) for name, value in row.items()}
    # In the JSON, the field "request" has the name of its database column.
    names = ("asked" if name == "request" else name for name in fields)
    return dict(zip(names, fields.values(), strict=True)) | {"asked": node.request}


def list_text(programs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of programs, which are given as `program_json` returns them."""
    names = (*_LISTED, "tenant")
    rows = [tuple(name.replace("_", " ") for name in names)]
    for row in programs:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["started"]))
        rows.append(tuple({**row, "started": began}[name] for name in names))
    return aligned(rows)


def history_text(program: History, *, only: str | None, full: bool) -> Iterator[str]:
    """Yield lines about a run and its nodes. If ``only`` is the place of a node, the nodes are this
    node alone. With ``full``, requests and answers are not shortened.
    """
    yield from list_text([program_json(program)])
    if fork := json.loads(program.program.options).get("fork"):
        yield "fork: " + ", ".join(f"{name} {value}" for name, value in fork.items() if value)
    if program.program.content != "full":
        content = program.program.content
        yield f"requests and answers were not recorded (--journal-content {content})"
    if not program.nodes:
        yield "no nodes: the program ran none, or they were deleted (--journal-keep)"
        return
    ways = {place: way for place, way in _ways(program).items() if only in (None, place)}
    rows = [_row(program.nodes[place], len(way)) for place, way in ways.items()]
    # One text at a time is in memory: in a growing chat, each request has the whole chat.
    texts = (
        (question_of(program.nodes[place], whole=full), answer_of(program.nodes[place]))
        for place in ways
    )
    if not full:
        joined = (" > ".join(filter(None, map(short, text))) for text in texts)
        cells = [(*row, text) for row, text in zip(rows, joined, strict=True)]
        yield from aligned([(*_HEAD, "request > answer"), *cells])
        return
    head, *lines = aligned([_HEAD, *rows])
    yield head
    for line, text in zip(lines, texts, strict=True):
        yield line
        named = zip(("request", "answer"), text, strict=True)
        yield from (textwrap.indent(f"{name}: {part}", "    ") for name, part in named if part)


def _ways(program: History) -> dict[str, list[str]]:
    """Return the path to each node: the tasks and nodes that contain the node, from the outermost
    to the innermost, and the node itself.

    For example, node 0.2#1 is in task 0.2, which is in task 0. The paths are sorted: the nodes of a
    task follow each other, and tasks are in the order in which their first nodes began.
    """
    ways, ranks = dict[str, list[str]](), dict[str, int]()
    for place in program.nodes:
        code = place.partition("!")[0]
        ways[place] = [code[: edge.start()] for edge in re.finditer(r"[.#]\d", code)]
        ways[place] += dict.fromkeys((code, place))
        for step in ways[place]:
            ranks.setdefault(step, len(ranks))
    return dict(sorted(ways.items(), key=lambda item: [ranks[step] for step in item[1]]))


def _row(node: PastNode, depth: int) -> tuple[Any, ...]:
    start, end = node.start, node.end
    said = parsed("account", end.account) if end and start.kind == "call" else None
    tokens = f"{said.get('prompt_tokens', 0)} > {said.get('output_tokens', 0)}" if said else ""
    took = None if end is None else end.ended - start.started
    place = f"{'  ' * (depth - 2)}{start.node}"
    return place, start.kind, short(start.name), node.state, took, tokens


def comparison_text(first: History, second: History) -> Iterator[str]:
    """Yield lines with the differences between two programs, and with the cost of each program."""
    result = comparison(first, second)
    if result["input"]:
        yield f"input: {result['input']}"
    differences = result["differences"]
    where = f", and the first that differs is {differences[0]['node']}" if differences else ""
    ids = f"{first.program.id} (was) and {second.program.id} (is)"
    yield f"{result['same']} nodes are equal in {ids}{where}"
    for each in differences[:_MOST]:
        yield from (f"  {each['node']}  {words}" for words in each["what"])
    if len(differences) > _MOST:
        yield f"  … and {len(differences) - _MOST} more nodes (--json has all)"
    a, b = result["programs"]
    names = {name: name.replace("_s", ", s").replace("_", " ") for name in a}
    yield from aligned([(names[name], a[name], b[name]) for name in a])
