"""Forking a recorded program: making a new program with the recorded nodes that had ended before a
chosen node.
"""

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
SET_ANSWER = "agentrt.runtime.recorded:SetAnswer"
"""The type name of an answer that the resumed program converts. It is not imported, because the
journal does not depend on the runtime.
"""
_SET = "the answer of a call (its text), a tool, a question, an event or a value"


def base_of(program_id: str) -> str:
    """Return the id of the original program from which a fork, or a fork of a fork, was made. For a
    program that is not a fork, return its own id.
    """
    return _FORK.sub("", program_id)


def fork_in(
    store: Store,
    old: History,
    at: str,
    answers: Mapping[str, str],
    input: str,
    how: Mapping[str, Any],
) -> RecordedProgram:
    """Return a fork of the program ``old`` that runs again from the node at place ``at``.

    If ``store`` has a fork that was made with the same options (``how``) and is open, failed or
    cancelled, this fork is returned. Otherwise a new fork is written to ``store``. ``input`` is the
    fork's input as JSON text. ``answers`` maps places of nodes, such as "0.1#2", to new answers of
    these nodes as JSON text. Raises `UsageError` if a node with a new answer began after the node
    ``at``, or if the result of a node that ended before ``at`` began could not be recorded. The
    result of a started task is not needed.
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
        id=name, number=FORKED, input=input, options=options, started=clock_of(store).now()
    )
    store.write([row, *_past_of(old, name, at, answers, shift_of(store))])
    return row


def _past_of(
    old: History, name: str, at: str, answers: Mapping[str, str], shift: float
) -> list[Change]:
    """Return the rows for the fork ``name``: the rows of all nodes that had ended when node ``at``
    began, and of the nodes that get new ``answers``. The fork runs all other nodes again.

    Times in ``old`` are times of day, and times in the rows are times of the journal's clock.
    ``shift`` is the number of seconds by which the time of day is ahead of that clock.
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
                raise UsageError(
                    f"--set {place}: this node began after node {at}, where the fork starts; fork "
                    f"with --at {place}, or set an earlier node"
                )
            group += 1
            order = place_of(group, 0)
            new = EndRow(name, place, start.attempt, DONE, order, "", "", "", start.started)
            end = (end or new)._replace(state=DONE, outcome=answers[place], account="")
        elif end is None or place == at or end.ended > begun:
            continue
        elif end.state == LOST and start.kind != "spawn":
            raise UsageError(
                f"the result of node {place} ({start.kind} {start.name}), which comes before {at}, "
                f"could not be recorded; fork with --at {place}, or set it with --set {place}=JSON"
            )
        # A request may be recorded as a difference from an earlier request. Write the whole request
        # if the earlier request is not in the fork, or has another answer in the fork.
        if any((row, attempt) not in kept for row, attempt, _ in node.requests.pieces_of(start)):
            start = start._replace(request=node.request_text)
        rows += [
            start._replace(program=name, started=start.started - shift),
            end._replace(program=name, ended=end.ended - shift).marked(),
        ]
    return rows


def answer_of(node: PastNode, answer: Any) -> str:
    """Return a new answer of a node in its recorded form.

    For a call, ``answer`` is the text of the reply, or the JSON value of a structured reply. For
    any other node, ``answer`` is a value or the JSON text of a value; a text that is not valid JSON
    stands for itself. If the old answer was a text, ``answer`` is the new text. Every new
    text may also be written as a JSON string. A dict with the key ``$`` is a value that is already
    in its recorded form.

    The resumed program converts the answer of a question with a schema to the type for which the
    program asks. The answer of any other node gets the type of the recorded answer
    (`_like_recorded`). Raises `UsageError` for an answer that cannot be set.
    """
    start, is_call = node.start, node.start.kind == "call"
    place_and_name = f"--set {start.node}: {start.kind} {start.name}"
    before = json.loads(node.end.outcome) if node.end and node.end.outcome else None
    if start.kind not in _SETTABLE or (is_call and _is_more(node.request, before)):
        raise UsageError(f"{place_and_name} has no answer that can be set; set {_SET}")
    raw_answer = answer
    if isinstance(answer, str):
        answer = _value(answer, is_text=is_call or isinstance(before, str))
    try:
        if isinstance(answer, dict) and "$" in answer:
            pass
        elif is_call:
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
            parsed = {"parsed": json.loads(text)} if "parsed" in (before or {}) else {}
            answer = {"$": REPLY, "text": text, **parsed}
        elif start.kind == "event":
            kind = "agentrt.interrupts.events:Event"
            answer = {"$": kind, "topic": start.name, "payload": answer}
        elif schema_of(node) is not None:
            answer = {"$": SET_ANSWER, "value": answer}
        elif node.end is not None and node.state == DONE and start.kind != "human":
            return dumps(_like_recorded(answer, raw_answer, node.end.outcome))
        return dumps(loads(json.dumps(answer)))
    except (UnkeptError, ValueError, RecursionError) as error:
        raise UsageError(f"{place_and_name}: {error}") from error


def schema_of(node: PastNode) -> Mapping[str, Any] | None:
    """Return the JSON schema of the answer to a question; None for a question without a schema and
    for any other node.
    """
    schema = node.request.get("schema") if node.start.kind == "human" else None
    return schema if isinstance(schema, Mapping) else None


def _like_recorded(answer: Any, raw_answer: Any, outcome: str) -> Any:
    """Return a new answer, a JSON value, as a value of the type of the recorded answer. The answer
    is returned unchanged if the recorded answer is plain JSON or cannot be read, if pydantic cannot
    write its type as JSON, or if it is written as another kind of JSON value, such as a text in
    place of an object. A number stands for its text, as it was typed in ``raw_answer``, if the
    recorded answer is written as a text: a `decimal.Decimal`, or a UUID that has only digits.

    Raises `ValueError` for an answer that does not fit the type.
    """
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        old = loads(outcome)
        plain = to_jsonable_python(old)
        if type(plain) is str and type(old) is not str and type(answer) in (int, float):
            answer = raw_answer if isinstance(raw_answer, str) else json.dumps(answer)
        if type(plain) is type(old) or type(plain) is not type(answer):
            return answer
        return TypeAdapter(type(old)).validate_json(json.dumps(answer))
    except (UnkeptError, PydanticSerializationError, PydanticUserError):
        return answer
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
        where = "".join(f"{part}: " for part in mistake["loc"])
        raise ValueError(
            f"the recorded answer is a {type(old).__name__}, and this value does not fit: "
            f"{where}{mistake['msg']}"
        ) from error


def _is_more(request: Any, before: Any) -> bool:
    """Return whether the answer of a call is not a single text but tokens or several choices."""
    return "prompt_token_ids" in request or "choices" in (before or {})


def _value(text: str, *, is_text: bool) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str) or not is_text else text
