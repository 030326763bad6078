"""Start the record of a program in a journal, or continue the record of a resumed program."""

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
    """The settings by which a program is recorded in the journal."""

    number: int | None = None
    """The number at the end of the program's id, such as the number of a program that resumes; None
    for the next number.
    """
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that are stored with the program, as JSON, for the code that resumes it."""
    id: str | None = None
    """The whole id of the program, instead of ``number``; set for forks and for runs of a batch."""
    draws_as: str = ""
    """The id of another program whose random seeds this program repeats; "" if it draws new
    seeds.
    """
    skips: bool = False
    """Whether values that cannot be recorded are left out. If False, the journal's option ``skips``
    decides.
    """


async def begin(
    journal: Journal, run: Run, program: Program, input: Any, seed: int, durable: Durable
) -> None:
    """Start or continue the record of ``run``, and return when the start of the run is on the disk.

    Must be called in the task of the run. Raises `JournalError` if the journal cannot be read, or
    has recorded the program with another input or without the content that it needs to resume.
    Raises `JournalWriteError` if the start cannot be written. An input that cannot be recorded
    raises `UnrecordableError`; if ``durable`` or the journal skips such values, the run continues
    without a record.
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
        _log.warning("%s (program %s continues without a record)", error, run.id)
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
    """Return a fingerprint of the file that defines a program; "" if no such file can be read."""
    try:
        return digest_of(Path(inspect.getfile(program.function)).read_text("utf-8"))
    except (OSError, TypeError, ValueError):
        return ""
