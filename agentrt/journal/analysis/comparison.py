"""Where two recorded programs part, node by node at the same places, and what each cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrt.journal.analysis.reading import REPLY, History
from agentrt.journal.analysis.rendering import program_json, question_of, short
from agentrt.journal.past import PastNode
from agentrt.journal.sketch import difference

_OF_A_RUN = ("report", "node", "program_id")
"""What a reply has of how it came about."""
_TOTALS = ("id", "state", "content", "wall_s", "nodes", "calls", "prompt_tokens", "cached_tokens")
_MORE = ("output_tokens", "waiting_s", "service_s", "preemptions")


def comparison(one: History, other: History) -> dict[str, Any]:
    """Both programs' totals, and where they differ, in the order of the first one's nodes, as JSON.
    ``input`` says how their inputs differ, if they do.
    """
    places = [*one.nodes, *(place for place in other.nodes if place not in one.nodes)]
    each = [{"node": place, "what": list(_differences(one, other, place))} for place in places]
    found = [difference for difference in each if difference["what"]]
    told = [program_json(history) for history in (one, other)]
    inputs = one.program.input, other.program.input
    is_other = all(inputs) and inputs[0] != inputs[1]
    return {
        "programs": [{name: row[name] for name in (*_TOTALS, *_MORE)} for row in told],
        "input": difference(*inputs) if is_other else None,
        "same": len(each) - len(found),
        "differences": found,
    }


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
    elif len({a.start.digest, b.start.digest, ""}) > 2:  # both are kept
        kept = a.start.asked and b.start.asked
        yield f"asked: {difference(a.asked_text, b.asked_text) if kept else 'something else'}"
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
