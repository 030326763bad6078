"""Runs of an earlier server in the journal: runs to resume, and runs that have ended."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from agentrt.errors import text_of
from agentrt.interrupts.events import Event
from agentrt.journal import Journal
from agentrt.journal.codec import UnkeptError, loads
from agentrt.journal.past import PastNode
from agentrt.journal.schema import CANCELLED, DONE, LOST, RecordedProgram
from agentrt.runtime.durable import Durable
from agentrt.serving.programs.bodies import RunRequest

LATE = {"type": "DeadlineExceeded", "message": "the run did not end before its deadline"}
"""The error of a run that was cancelled at its deadline."""
BATCH_OPTION = "batch"
"""The option of a recorded run that has the id of the run's batch."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeftRun:
    """A run to resume, with its tenant, its request and its record in the journal."""

    type: str
    tenant: str
    body: RunRequest
    durable: Durable


def durable_of(
    body: RunRequest, now: float, event: Event | None = None, *, stores_content: bool
) -> Durable:
    """Return how a run is recorded in the journal.

    The recorded deadline is a time of the journal's clock, which shows ``now`` (seconds).
    ``event`` is the event that started the run, if any. Its payload is content, so it is recorded
    only if the journal ``stores_content``.
    """
    until = None if body.deadline is None else now + body.deadline
    waits = body.wait or body.stream
    options: dict[str, Any] = {"waits": waits, "until": until}
    if event is not None:
        # Usually the input is the event. It is not recorded twice.
        is_recorded = stores_content and body.input != input_of(event)
        options["event"] = _recorded(event) if is_recorded else True
    return Durable(options=options, skips=waits)


def input_of(event: Event) -> dict[str, Any]:
    """Return an event as the input of the program that it starts."""
    return {"topic": event.topic, "payload": event.payload}


def event_of(left: LeftRun) -> Event | None:
    """Return the event that started a run; None if it was started otherwise."""
    recorded = left.durable.options.get("event")
    if not recorded:
        return None
    if recorded is True:
        return Event(**left.body.input)
    payload = b64decode(recorded["base64"]) if "base64" in recorded else recorded["payload"]
    return Event(recorded["topic"], payload)


def _recorded(event: Event) -> dict[str, Any]:
    if isinstance(event.payload, bytes):
        return {"topic": event.topic, "base64": b64encode(event.payload).decode()}
    return input_of(event)


async def left_runs(journal: Journal, types: Collection[str]) -> list[LeftRun]:
    """Return the unfinished runs of these program types that this server can resume.

    A run whose client waited for its result is not resumed: the client has disconnected, which
    cancels the run. A run is also not resumed if the journal does not have the run's full content.
    Runs of batches are not returned, because the batches resume them.
    """
    open_runs = []
    for row in await journal.open_programs():
        options = json.loads(row.options)
        if BATCH_OPTION in options:
            continue
        if options.get("waits") or row.content != "full":
            await journal.abandon(row.id)
        elif row.type not in types:
            _log.warning(
                "run %s stays in the journal: this server does not serve its program %r",
                *(row.id, row.type),
            )
        else:
            try:
                open_runs.append(left_run(journal, row))
            except UnkeptError as error:
                _log.warning("run %s cannot be resumed because of its input: %s", row.id, error)
                await journal.abandon(row.id)
    return open_runs


def left_run(journal: Journal, row: RecordedProgram) -> LeftRun:
    """Return a recorded run with its original input, session and deadline.

    Raises `UnkeptError` if the journal does not have the input.
    """
    options = json.loads(row.options)
    until = options.get("until")
    seconds = None if until is None else max(0.001, until - journal.clock.now())
    body = RunRequest.model_construct(
        input=journal.input_of(row), session=row.session, deadline=seconds, wait=False
    )
    return LeftRun(row.type, row.tenant, body, Durable(row.number, options))


async def ended_run(
    journal: Journal | None, tenant: str, name: str, run_id: str
) -> dict[str, Any] | None:
    """Describe an ended run from the journal. Return None for an unknown run, and for a run of
    another tenant than ``tenant`` or of another program than ``name``.
    """
    if journal is None or (known := await journal.ended_program(run_id)) is None:
        return None
    row, root = known
    if (row.tenant, row.type) != (tenant, name):
        return None
    calls, output_tokens = await journal.usage(run_id)
    result, error = _outcome(root)
    until = json.loads(row.options).get("until")
    if root.end is not None and root.state == CANCELLED and until is not None:
        error = LATE if root.end.ended >= until else error
    return {
        "id": row.id,
        "object": "program.run",
        "program": row.type,
        "state": DONE if root.state == LOST else root.state,
        "parked": False,
        "questions": [],
        "calls": calls,
        "output_tokens": output_tokens,
        "result": result,
        "error": error,
    }


def _outcome(root: PastNode) -> tuple[Any, dict[str, str] | None]:
    assert root.end is not None
    if not root.end.outcome:
        return None, None
    try:
        value = loads(root.end.outcome)
    except UnkeptError:
        return None, None
    if isinstance(value, BaseException):
        return None, {"type": type(value).__name__, "message": text_of(value)}
    return value, None
