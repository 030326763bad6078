"""Begins a program in a journal, or goes on with it there."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from agentrt import tracking
from agentrt.errors import UnrecordableError
from agentrt.journal import Journal
from agentrt.journal.schema import RecordedProgram
from agentrt.journal.sketch import digest_of
from agentrt.program import Program
from agentrt.runtime.run import Run
from agentrt.tracking.place import Place

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Durable:
    """How a program is recorded. ``number`` is that of one which goes on under its old id, None of
    one that begins; a fork has its whole ``id``, and draws the seeds of the program ``draws_as``.
    ``options`` are kept with it, for whoever starts it again: plain JSON. One that will not go on
    after its process ``skips`` values that cannot be recorded.
    """

    number: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    draws_as: str = ""
    skips: bool = False


async def begin(
    journal: Journal, run: Run, program: Program, input: Any, seed: int, durable: Durable
) -> None:
    """Give ``run`` its record: its beginning is on the disk when this returns. To be called in its
    task. Raises `JournalError` and `JournalWriteError`, and `UnrecordableError` for an input that
    cannot be recorded; a run that skips such values has no record then.
    """
    task, scope = run.task, tracking.current_scope()
    assert task is not None
    assert scope is not None
    row = RecordedProgram(
        id=run.id,
        number=int(run.id.rpartition("-")[2]),
        type=run.type,
        tenant=run.row.tenant,
        session=run.row.session,
        seed=seed,
        code=code_of(program),
        options=json.dumps(dict(durable.options)),
    )
    skips = journal.skips or durable.skips
    try:
        with tracking.outside():
            record = await journal.program(row, input)
    except UnrecordableError as error:
        if not skips:
            raise
        _log.warning("%s (program %s goes on without a record)", error, run.id)
        return
    record.skips = skips
    record.stopping = lambda: tracking.is_stopped(task)
    record.order.is_alone = partial(tracking.is_single, scope.family)
    record.order.waits = lambda: tracking.all_wait(run)
    if record.order.holds:
        record.order.caught_up = partial(tracking.release_timers, run)
        tracking.hold_timers(run, record.order)
    record.begin(run.type)
    run.record, scope.place = record, Place()
    await record.written()


def code_of(program: Program) -> str:
    """A fingerprint of the file that a program is in; "" where there is none."""
    try:
        return digest_of(Path(inspect.getfile(program.function)).read_text("utf-8"))
    except (OSError, TypeError, ValueError):
        return ""
