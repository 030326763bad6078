"""Where two recorded programs part, node by node at the same places, and what each cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrt.cli.runs_text import aligned, program_json, question_of, short
from agentrt.journal.difference import difference
from agentrt.journal.past import PastNode
from agentrt.journal.reading import REPLY, History

_MOST = 20
_OF_A_RUN = ("report", "node", "program_id")
"""What a reply has of how it came about."""
_TOTALS = ("id", "state", "wall_s", "nodes", "calls", "prompt_tokens", "cached_tokens")
_MORE = ("output_tokens", "waiting_s", "service_s", "preemptions")


def difference_json(one: History, other: History) -> dict[str, Any]:
    """Both programs' totals, and where they differ, in the order of the first one's nodes."""
    places = [*one.nodes, *(place for place in other.nodes if place not in one.nodes)]
    each = [{"node": place, "what": list(_differences(one, other, place))} for place in places]
    found = [difference for difference in each if difference["what"]]
    told = [program_json(history) for history in (one, other)]
    return {
        "programs": [{name: row[name] for name in (*_TOTALS, *_MORE)} for row in told],
        "same": len(each) - len(found),
        "differences": found,
    }


def difference_text(one: History, other: History) -> Iterator[str]:
    """The same for people."""
    told = difference_json(one, other)
    if one.program.input != other.program.input:
        yield f"input: {difference(one.program.input, other.program.input)}"
    found = told["differences"]
    where = f"; they part at {found[0]['node']}" if found else ""
    yield f"{told['same']} nodes are the same in {one.program.id} and {other.program.id}{where}"
    for each in found[:_MOST]:
        yield from (f"  {each['node']}  {words}" for words in each["what"])
    if len(found) > _MOST:
        yield f"  … and {len(found) - _MOST} more nodes (--json has all)"
    a, b = told["programs"]
    yield from aligned([(name, a[name], b[name]) for name in a])


def _differences(one: History, other: History, place: str) -> Iterator[str]:
    a, b = one.nodes.get(place), other.nodes.get(place)
    if a is None or b is None:
        there, node = (one, a) if b is None else (other, b)
        assert node is not None
        said = ": ".join(filter(None, (_what(node), short(question_of(node), 160))))
        yield f"only in {there.program.id}: {said}"
        return
    if _what(a) != _what(b):
        yield f"was {_what(a)} and is {_what(b)}"
    elif a.start.digest != b.start.digest:
        kept = a.start.asked and b.start.asked
        yield f"asked: {difference(a.start.asked, b.start.asked) if kept else 'something else'}"
    if a.state != b.state:
        yield f"was {a.state} and is {b.state}"
    before, after = _answer(a), _answer(b)
    if before and after and before != after:
        yield f"answered: {difference(before, after)}"


def _what(node: PastNode) -> str:
    return f"{node.start.kind} {node.start.name}"


def _answer(node: PastNode) -> str:
    """An answer as JSON, without how it came about; "" for none."""
    if node.end is None or not node.end.outcome:
        return ""
    return json.dumps(json.loads(node.end.outcome, object_hook=_bare))


def _bare(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("$") != REPLY:
        return value
    return {name: one for name, one in value.items() if name not in _OF_A_RUN}
