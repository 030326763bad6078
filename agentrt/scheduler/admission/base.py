"""What an admission is: it keeps calls outside the queue until their program may come in.

The programs whose calls may run are the *members* of the working set; the calls of all others
wait outside, in an order of their own. Pure and synchronous: time comes with the event.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from agentrt.scheduler.call import QueuedCall

Rank = tuple[float, ...]
_SLACK = 64


class Capacity(NamedTuple):
    """An engine's KV cache, in ``blocks`` of ``block_size`` tokens, and its batch ``slots``."""

    blocks: int
    block_size: int
    slots: int


class Admission(ABC):
    """Decides which programs are members.

    An engine tells it of every call and interrupt. A call that arrives begins as its level says
    if it `goes_on`; else it waits outside until `let_in` names it. All calls of a program are
    inside or all are outside. ``changed`` are the programs that became members or ceased to be
    since the engine last looked. One that is ``lined`` sees itself to those who wait for long.
    """

    name: ClassVar[str]
    lined: ClassVar[bool] = False

    def __init__(self, config: SchedulerConfig, capacity: Capacity) -> None:
        self.config, self.capacity = config, capacity
        self.changed: dict[str, bool] = {}
        self._heap: list[tuple[Rank, int, QueuedCall]] = []
        self._outside: dict[str, dict[str, QueuedCall]] = {}
        self.held = 0

    # -- what happens ------------------------------------------------------------------

    def call_arrived(self, call: QueuedCall, known: int, beside: int, now: float) -> None:
        """A call came; its program's own calls had computed its prompt's first ``known`` tokens.

        So many are in the prompt of another call, ``beside`` it in the engine now, too.
        """

    def call_began(self, call: QueuedCall, cached: int, now: float) -> None:
        """It began to run, and found so many tokens ``cached``; or went on after a preemption."""

    def call_preempted(self, call: QueuedCall, now: float) -> None:
        """It gave its memory back, since there was none left. It waits again."""

    def call_ended(self, call: QueuedCall, tokens: int, now: float) -> None:
        """It ended, or was aborted, with so many ``tokens`` of prompt and output computed."""

    def interrupt_began(
        self, program_id: str, what: str, seconds: float | None, now: float
    ) -> None:
        """A ``tool`` or a ``human`` is asked; its answer is expected in so many ``seconds``."""

    def interrupt_ended(self, program_id: str, what: str, now: float) -> None:
        """It answered."""

    def program_ended(self, program_id: str, now: float) -> None:
        """A program ended, was cancelled or is lost."""

    def step(self, seconds: float, tokens: int, calls: int) -> None:
        """A step of the engine computed so many ``tokens`` of so many ``calls``."""

    # -- what is asked -----------------------------------------------------------------

    def rank(self, call: QueuedCall) -> Rank:
        """The least is the first to be let in; asked anew when the policy's answer changes."""
        return call.key

    @abstractmethod
    def goes_on(self, call: QueuedCall, now: float) -> bool:
        """Whether a call that arrives or comes back is a member's, and may stay one."""

    @abstractmethod
    def admits(self, call: QueuedCall, now: float, running: int) -> bool:
        """Whether the program of a call outside becomes a member now.

        ``running`` calls are inside, those that could begin among them. Asked of the first one,
        until it says no; where nothing is running it has to say yes, or `next_moment` when it will.
        """

    # -- those outside -----------------------------------------------------------------

    def __len__(self) -> int:
        """How many programs wait outside."""
        return len(self._outside)

    def wait(self, call: QueuedCall) -> None:
        """A call waits outside, or has another priority there. O(log n)."""
        calls = self._outside.setdefault(call.program.program_id, {})
        self.held += call.call_id not in calls
        calls[call.call_id] = call
        heapq.heappush(self._heap, (self.rank(call), call.seq, call))
        if len(self._heap) > 2 * self.held + _SLACK:
            self._heap = [entry for entry in self._heap if _current(entry)]
            heapq.heapify(self._heap)

    def leave(self, call: QueuedCall) -> None:
        """A call waits outside no longer: it was aborted."""
        calls = self._outside.get(call.program.program_id, {})
        self.held -= calls.pop(call.call_id, None) is not None
        if not calls:
            self._outside.pop(call.program.program_id, None)
        call.held = False

    def first(self) -> QueuedCall | None:
        """The call outside that is next to be let in."""
        while self._heap:
            if _current(self._heap[0]):
                return self._heap[0][2]
            heapq.heappop(self._heap)
        return None

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        """The calls that wait outside no longer, those of one program; none for no program."""
        call = self.first()
        if call is None or not self.admits(call, now, running):
            return []
        return self.take(call.program.program_id)

    def next_moment(self) -> float:
        """When somebody may come in at the earliest, if nothing happens till then; or inf."""
        return math.inf

    def take(self, program_id: str) -> list[QueuedCall]:
        """A program's calls, which are outside no longer."""
        calls = list(self._outside.pop(program_id, {}).values())
        self.held -= len(calls)
        for call in calls:
            call.held = False
        return calls


def _current(entry: tuple[Rank, int, QueuedCall]) -> bool:
    _, seq, call = entry
    return call.held and call.seq == seq
