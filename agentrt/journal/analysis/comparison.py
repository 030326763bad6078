"""Comparing two recorded programs: the nodes at the same places, and the costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentrt.journal.analysis.forking import SET_ANSWER
from agentrt.journal.analysis.reading import REPLY, History
from agentrt.journal.analysis.rendering import program_json, question_of, short
from agentrt.journal.past import PastNode
from agentrt.journal.sketch import difference

_OF_A_RUN = ("report", "node", "program_id")
"""Fields of a reply that depend on the run and not on the answer."""
_TOTALS = ("id", "state", "content", "wall_s", "nodes", "calls", "prompt_tokens", "cached_tokens")
_NO_TEXT = "differs, but the texts of the requests were not recorded"
_MORE = ("output_tokens", "waiting_s", "service_s", "preemptions")


def comparison(first: History, second: History) -> dict[str, Any]:
    """Return the totals of two programs and the differences of their nodes as JSON. The differences
    are in the order of the first program's nodes; nodes that only the second program has follow.
    ``input`` says how the inputs differ. It is None if the inputs are equal, or if one of them was
    not recorded.
    """
    places = [*first.nodes, *(place for place in second.nodes if place not in first.nodes)]
    each = [{"node": place, "what": list(_differences(first, second, place))} for place in places]
    changed = [difference for difference in each if difference["what"]]
    totals = [program_json(history) for history in (first, second)]
    inputs = first.program.input, second.program.input
    is_other = all(inputs) and inputs[0] != inputs[1]
    return {
        "programs": [{name: row[name] for name in (*_TOTALS, *_MORE)} for row in totals],
        "input": difference(*inputs) if is_other else None,
        "same": len(each) - len(changed),
        "differences": changed,
    }


def _differences(first: History, second: History, place: str) -> Iterator[str]:
    a, b = first.nodes.get(place), second.nodes.get(place)
    if a is None or b is None:
        there, node = (first, a) if b is None else (second, b)
        assert node is not None
        description = ": ".join(filter(None, (_kind_and_name(node), short(question_of(node), 160))))
        yield f"only in {there.program.id}: {description}"
        return
    if _kind_and_name(a) != _kind_and_name(b):
        yield f"was {_kind_and_name(a)} and is {_kind_and_name(b)}"
    elif len({a.start.digest, b.start.digest, ""}) > 2:  # both have a digest, and they differ
        has_both = a.start.request and b.start.request
        change = difference(a.request_text, b.request_text) if has_both else _NO_TEXT
        yield f"request: {change}"
    if a.state != b.state:
        yield f"was {a.state} and is {b.state}"
    before, after = _answer(a), _answer(b)
    if before and after and before != after:
        yield f"answer: {difference(before, after)}"


def _kind_and_name(node: PastNode) -> str:
    return f"{node.start.kind} {node.start.name}"


def _answer(node: PastNode) -> str:
    """Return the answer of a node as JSON text, without the fields that depend on the run. Return
    "" if no answer was recorded.
    """
    if node.end is None or not node.end.outcome:
        return ""
    return json.dumps(json.loads(node.end.outcome, object_hook=_without_costs))


def _without_costs(value: dict[str, Any]) -> Any:
    if value.get("$") == SET_ANSWER:
        return value["value"]
    if value.get("$") != REPLY:
        return value
    return {name: field for name, field in value.items() if name not in _OF_A_RUN}
