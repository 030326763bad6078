"""Recorded programs for people, as JSON, and as a DAG."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

from agentrt.graph import ExecutionDAG, NodeKind
from agentrt.journal.codec import loads
from agentrt.journal.misses import texts_of
from agentrt.journal.past import PastNode
from agentrt.journal.reading import REPLY, History
from agentrt.journal.schema import FAILED

_SHORT = 40
_KINDS = {**{str(kind): kind for kind in NodeKind}, "sleep": NodeKind.EVENT}
_JSON = ("input", "options", "asked", "outcome", "account")
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


def program_json(found: History) -> dict[str, Any]:
    """A program as JSON, without its nodes; times of day are seconds since 1970."""
    row, ended = found.program, found.ended
    wall_s = None if ended is None else ended - row.started
    told = {**row._asdict(), "state": found.state, "ended": ended, "wall_s": wall_s}
    return {name: _parsed(name, value) for name, value in told.items()} | found.totals()


def history_json(found: History) -> dict[str, Any]:
    """A program with its nodes as JSON: questions and answers are as they are recorded."""
    outcome = found.root.end.outcome if found.root and found.root.end else ""
    return {
        **program_json(found),
        "outcome": _parsed("outcome", outcome),
        "nodes": [_node_json(node) for node in found.nodes.values()],
    }


def _node_json(node: PastNode) -> dict[str, Any]:
    ended = {} if node.end is None else node.end._asdict()
    row = {**node.start._asdict(), **ended, "state": node.state}
    return {name: _parsed(name, value) for name, value in row.items()}


def _parsed(name: str, value: Any) -> Any:
    return (json.loads(value) if value else None) if name in _JSON else value


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
    said = _parsed("account", end.account) if end else None
    tokens = f"{said.get('prompt_tokens', 0)}>{said.get('output_tokens', 0)}" if said else ""
    took = None if end is None else end.ended - start.started
    place = f"{'  ' * (depth - 2)}{start.node}"
    return place, start.kind, short(start.name), node.state, took, tokens


# -- what was asked and answered --------------------------------------------------------------


def question_of(node: PastNode, *, whole: bool = False) -> str:
    """What a node was asked, for people; "" if that is its name, or was not kept. Of a chat that is
    its last message, or the ``whole`` of it.
    """
    asked = _parsed("asked", node.start.asked)
    if isinstance(asked, dict):
        if whole and (texts := [*texts_of(asked)]):
            return "".join(texts)
        if messages := asked.get("messages"):
            asked = messages[-1].get("content")
        elif "prompt_token_ids" in asked:
            asked = f"{len(asked['prompt_token_ids'])} tokens"
        else:
            asked = asked.get("arguments", asked.get("question", asked))
    return _as_text(asked)


def answer_of(node: PastNode) -> str:
    """What a node answered, for people; "" if that was nothing, or was not kept."""
    value = _parsed("outcome", node.end.outcome) if node.end else None
    if isinstance(value, dict) and "$" in value:
        if {"value", "state", "text"} <= value.keys():
            return f"{re.split('[.:]', value['$'])[-1]}: {value['text']}"
        if value["$"] == REPLY:
            calls = value.get("tool_calls", {}).get("value", ())
            asked = [f"{one['name']}({_as_text(one.get('arguments'))})" for one in calls]
            return " ".join(filter(None, (value["text"], *asked)))
        value = value.get("payload", value.get("value", value))
    return _as_text(value)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def short(text: str, most: int = _SHORT) -> str:
    """A text in one line of at most so many characters."""
    flat = " ".join(text[: 9 * most].split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


# -- as a DAG ---------------------------------------------------------------------------------


def dag_of(found: History) -> ExecutionDAG:
    """A program's execution DAG. Times are seconds since 1970."""
    dag, ids = ExecutionDAG(found.program.id, found.program.type), dict[str, int]()
    for place, node in found.nodes.items():
        start, end = node.start, node.end
        if (kind := _KINDS.get(start.kind)) is None:
            continue
        before = () if end is None else tuple(ids[one] for one in end.parents.split() if one in ids)
        made = dag.add(kind, start.name, start.scope, before, start.started)
        dag.start(made.id, start.started)
        if end is None:
            continue
        ids[place] = made.id
        report = loads(end.account) if end.account else None
        if end.state == FAILED:
            dag.fail(made.id, end.ended, answer_of(node), report)
        else:
            dag.finish(made.id, end.ended, report)
    return dag
