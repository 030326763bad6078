"""The top of a loop, where a program that goes on takes up the last state that it had there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from agentrt import tracking
from agentrt.errors import UnrecordableError, UsageError
from agentrt.journal.codec import UnkeptError, dumps, loads
from agentrt.journal.record import ProgramRecord
from agentrt.runtime.run import Run
from agentrt.tracking.place import Place

T = TypeVar("T")
KIND = "checkpoint"
AtOnce = Callable[[str, str, Any, Callable[[], Any]], Any]


class Checkpoint:
    """What `Context.checkpoint` gives: call it with the state.

    A loop is known by the number of the node that made this. Its states are nodes as others, with
    how many tasks the program had started; to go on from one is to be where the code was then.
    """

    def __init__(self, run: Run, place: Place | None, at_once: AtOnce) -> None:
        self._run, self._place, self._at_once = run, place, at_once
        at_once(KIND, "loop", None, lambda: None)
        self._loop = 0 if place is None else place.nodes - 1
        self._is_first = True
        self._top: tuple[FrameType, int] | None = None

    def __call__(self, state: T) -> T:
        """Offer a state; at the first time in a program that goes on, the last one comes back."""
        place, record = self._place, self._run.record
        frame = sys._getframe(1)
        at = frame, frame.f_lineno  # of one line, there may be two copies in the code
        self._top = self._top or at
        if self._top != at:
            raise UsageError(
                f"program {self._run.id}: a checkpoint is for the top of one loop: make another"
            )
        if not tracking.is_alone(self._run) or asyncio.current_task() is not self._run.task:
            raise UsageError(
                f"program {self._run.id}: a checkpoint is for the program's own function, while no "
                "other task of it is open: wait for them before"
            )
        if place is None or record is None:
            return state
        if self._is_first:
            go_to_last(record, place, str(self._loop))
        self._is_first = False
        again: T = self._at_once(
            KIND, str(self._loop), {"tasks": place.forks}, lambda: self._kept(state)
        )
        return again

    def _kept(self, state: T) -> T:
        """As it will be after a restart; if that cannot be, and the program goes on without a
        record of such states, as it is.
        """
        assert self._run.record is not None
        try:
            kept: T = loads(dumps(state, what="state"))
        except UnkeptError as error:
            if self._run.record.skips:
                return state
            raise UnrecordableError(f"program {self._run.id}: checkpoint: {error}") from error
        return kept


def go_to_last(record: ProgramRecord, place: Place, loop: str) -> None:
    """Leave out what is recorded before the last state of a loop."""
    number, last = record.past.last_of(place.path, KIND, loop)
    if last is not None:
        tasks = last.asked["tasks"]
        record.past.leave_out(place.path, (place.nodes, number), (place.forks, tasks))
        place.nodes, place.forks = number, tasks
