"""Which programs may use the KV cache now: what an admission is."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import Events
from agentrt.scheduler.heap import Heap
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.records import OUTSIDE, CachedBlocks, ProgramRow, QueuedCall


class Capacity(NamedTuple):
    """An engine's KV cache, in ``blocks`` of ``block_size`` tokens, and its batch ``slots``."""

    blocks: int
    block_size: int
    slots: int


class Admission(Events):
    """Decides which programs are *members*, by their rows' ``member``: whose calls may run.

    A call that arrives begins as its level says if it `goes_on`; else it waits outside until
    `let_in` names it. All calls of a program are inside or all are outside. ``changed`` is called
    with the cached blocks of programs that became members or ceased to be.
    """

    name: ClassVar[str]

    def __init__(self, config: SchedulerConfig, capacity: Capacity, learned: Learned) -> None:
        self.config, self.capacity, self.learned = config, capacity, learned
        self.changed: Callable[[CachedBlocks], None] = lambda blocks: None
        self.members: dict[ProgramRow, None] = {}  # as they came in
        self._outside: Heap[QueuedCall] = Heap()

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        """The least is the first to be let in; asked anew when the policy's answer changes."""
        return call.key

    @abstractmethod
    def goes_on(self, call: QueuedCall) -> bool:
        """Whether a call that arrives or comes back is a member's, and may stay one."""

    @abstractmethod
    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        """Whether the program of a call outside becomes a member now.

        ``running`` calls are inside, those that could begin among them. Where nothing is running
        it has to say yes, or `next_moment` when it will.
        """

    def wait(self, call: QueuedCall) -> None:
        """A call waits outside, or has another priority there. O(log n)."""
        self._outside.put(call, self.rank(call))

    def leave(self, call: QueuedCall) -> None:
        """A call waits outside no longer."""
        self._outside.discard(call)

    def asked(self, now: float, running: int) -> Iterable[QueuedCall]:
        """Those that may come in next, the first first."""
        return islice(self._outside, 1)

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        """The calls that wait outside no longer, those of one program; none for no program."""
        for call in self.asked(now, running):
            if self.admits(call, now, running):
                calls = [one for one in call.program.queued.values() if one.state is OUTSIDE]
                for one in calls:
                    self.leave(one)
                return calls
        return []

    def next_moment(self) -> float:
        """When somebody may come in at the earliest, if nothing happens till then; or inf."""
        return math.inf

    def _set_member(self, row: ProgramRow, member: bool) -> None:
        row.member = member
        if member:
            self.members[row] = None
        else:
            del self.members[row]
        if row.cached is not None:
            self.changed(row.cached)
