"""Another program out of a recorded one: what had ended before one of its nodes, under a new id."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agentrt.errors import UsageError
from agentrt.journal.analysis.reading import REPLY, History, history
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.order import group_of, place_of
from agentrt.journal.past import PastNode
from agentrt.journal.schema import DONE, FORKED, LOST, Change, EndRow, RecordedProgram
from agentrt.journal.store import Store, clock_of, shift_of

_FORK = re.compile(r"-fork-\d+$")
_SETTABLE = ("call", "tool", "human", "event", "value")
_SET = "that of a call (its text), a tool, a question, an event or a value"


def base_of(program_id: str) -> str:
    """The program that a fork came from in the end; itself, if it is none."""
    return _FORK.sub("", program_id)


def fork_in(
    store: Store,
    old: History,
    at: str,
    answers: Mapping[str, str],
    given: str,
    how: Mapping[str, Any],
) -> RecordedProgram:
    """The fork of ``old`` at the node ``at`` that ``store`` has: one that was made in this way
    (``how``, plain JSON) and is not done, or a new one. ``given`` is its input, and ``answers``
    are those of nodes that are to have had another one: all JSON. Raises `UsageError`.
    """
    options = json.dumps({"fork": how})
    known = dict(store.query("SELECT id, options FROM agentrt_programs"))
    for name in (name for name, made in known.items() if made == options):
        if (made := history(store, name)).state not in (DONE, LOST):
            return made.program
    base, number = base_of(old.program.id), 1
    while (name := f"{base}-fork-{number}") in known:
        number += 1
    row = old.program._replace(
        id=name, number=FORKED, input=given, options=options, started=clock_of(store).now()
    )
    store.write([row, *_past_of(old, name, at, answers, shift_of(store))])
    return row


def _past_of(
    old: History, name: str, at: str, answers: Mapping[str, str], shift: float
) -> list[Change]:
    """The rows of what had ended when ``at`` began. What was still under way then is begun anew.
    The journal that they are for is ``shift`` seconds behind the time of day.
    """
    begun, rows = old.nodes[at].start.started, list[Change]()
    kept = {
        (node.start.node, node.start.attempt)
        for node in old.nodes.values()
        if node.end is not None
        and node.end.ended <= begun
        and node.start.node not in (at, *answers)
    }
    places = [node.end.place for node in old.nodes.values() if node.end]
    group = max(map(group_of, places), default=0)
    for place, node in old.nodes.items():
        start, end = node.start, node.end
        if place in answers:
            if start.started > begun:
                raise UsageError(f"--set {place}: that node began after --at {at}: give that --at")
            group += 1
            order = place_of(group, 0)
            new = EndRow(name, place, start.attempt, DONE, order, "", "", "", start.started)
            end = (end or new)._replace(state=DONE, outcome=answers[place], account="")
        elif end is None or place == at or end.ended > begun:
            continue
        elif end.state == LOST and start.kind != "spawn":
            raise UsageError(
                f"the result of node {place} ({start.kind} {start.name}) could not be kept, and "
                f"it comes before {at}: fork there, or give it by --set {place}=JSON"
            )
        # Where an earlier question is not there any more, or has another answer, it is whole.
        if any((row, attempt) not in kept for row, attempt, _ in node.questions.of(start)):
            start = start._replace(asked=node.asked_text)
        rows += [
            start._replace(program=name, started=start.started - shift),
            end._replace(program=name, ended=end.ended - shift).marked(),
        ]
    return rows


def answer_of(node: PastNode, given: Any) -> str:
    """Another answer of a node, as JSON: of a call its text, or the JSON that it was to give; else
    a JSON value, also as text, unless the node had answered with text. What has types is given as
    it is recorded. Raises `UsageError`.
    """
    start, is_call = node.start, node.start.kind == "call"
    what = f"--set {start.node}: {start.kind} {start.name}"
    before = json.loads(node.end.outcome) if node.end and node.end.outcome else None
    if start.kind not in _SETTABLE or (is_call and _is_more(node.asked, before)):
        raise UsageError(f"{what} has no answer that can be set; set {_SET}")
    if isinstance(given, str):
        given = _value(given, is_text=is_call or isinstance(before, str))
    try:
        if isinstance(given, dict) and "$" in given:
            pass
        elif is_call:
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            parsed = {"parsed": json.loads(text)} if "parsed" in (before or {}) else {}
            given = {"$": REPLY, "text": text, **parsed}
        elif start.kind == "event":
            kind = "agentrt.interrupts.events:Event"
            given = {"$": kind, "topic": start.name, "payload": given}
        return dumps(loads(json.dumps(given)))
    except (UnkeptError, ValueError) as error:
        raise UsageError(f"{what}: {error}") from error


def _is_more(asked: Any, before: Any) -> bool:
    """Whether a call answers with more than a text: with tokens, or with several texts."""
    return "prompt_token_ids" in asked or "choices" in (before or {})


def _value(given: str, *, is_text: bool) -> Any:
    try:
        value = json.loads(given)
    except ValueError:
        return given
    return value if isinstance(value, str) or not is_text else given
