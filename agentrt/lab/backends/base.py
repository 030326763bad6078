"""What the driver asks of whatever serves calls: simulated steps, virtual engines, a real one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from agentrt.lab.engine.virtual import EngineCounts
from agentrt.lab.program import LiveProgram, Words, plain_words
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.request import CallReport
from agentrt.router import Dispatcher, RoutedCall, RouterCall, make_router
from agentrt.router.speed import Speed

CallEnded = Callable[[LiveProgram, int, CallReport], None]
"""How a backend says that a call has ended: the program, the call's index, what it used."""


class Backend(ABC):
    """One engine or several. Moments are on the backend's own scale: seconds, or whole steps.

    At each moment the driver has it `serve`, hands it what arrives, and has it `choose`.
    """

    same_moment: ClassVar[bool] = False
    """Whether a call without a gap comes as its last parent ends, before what else happens then."""
    run_name: str = ""
    """What programs' names end in, so that runs on one engine differ."""
    words: Words = staticmethod(plain_words)
    """What prompts are made of."""

    @abstractmethod
    def next_moment(self, arrival: float) -> float:
        """When something happens next, if the next arrival is at ``arrival``; inf for never."""

    @abstractmethod
    def serve(self, moment: float, ended: CallEnded) -> None:
        """It is ``moment``: report the calls that are over to ``ended``."""

    @abstractmethod
    def submit(self, live: LiveProgram, index: int) -> None:
        """A program makes a call."""

    def choose(self) -> None:
        """All is in that comes at this moment: decide who runs."""

    def moments(self, seconds: float) -> float:
        """So many seconds on the backend's scale."""
        return seconds

    def seconds(self, moment: float) -> float:
        """A moment in seconds."""
        return moment

    def ideal_s(self, program: ProgramShape) -> float:
        """Seconds from start to end with an engine to itself; NaN where nobody knows."""
        return math.nan

    # -- events that it may ignore -----------------------------------------------------

    def expect(self, program: ProgramShape) -> None:
        """A program will come. Raises `ConfigError` for one that cannot be served."""

    def program_started(self, live: LiveProgram) -> None:
        """A program has arrived."""

    def boundary(self, program_id: str, what: str, name: str) -> None:
        """A program began to wait for a tool or a human, or was answered."""

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        """The process table knows of a call's end now."""

    def program_ended(self, live: LiveProgram) -> None:
        """A program has ended."""

    # -- what it has counted -----------------------------------------------------------

    @property
    def counts(self) -> list[EngineCounts]:
        """What each engine counted; none where engines are too simple to count."""
        return []

    @property
    def busy_s(self) -> list[float]:
        return []


class Replicas:
    """The router before several engines: where each call went, and who has served whom."""

    def __init__(
        self,
        router: str,
        count: int,
        slots: int,
        level_ends: Sequence[float] = (),
        speed: Speed | None = None,
    ) -> None:
        self.dispatcher = Dispatcher(make_router(router), level_ends, speed)
        self.views = [self.dispatcher.join(f"replica-{index}", slots) for index in range(count)]
        self._calls: dict[str, RoutedCall] = {}
        self._served: dict[str, dict[int, None]] = {}

    def send(self, call_id: str, question: RouterCall) -> int:
        """The number of the engine that a call goes to."""
        routed = self._calls[call_id] = self.dispatcher.send(question, self.views)
        index = routed.replica.index
        self._served.setdefault(question.program_id, {})[index] = None
        return index

    def ended(self, call_id: str, report: CallReport) -> None:
        self.dispatcher.ended(self._calls.pop(call_id), report)

    def served(self, program_id: str) -> list[int]:
        """The engines that have served a program, the first one first."""
        return list(self._served.get(program_id, ()))

    def program_ended(self, program_id: str) -> None:
        self.dispatcher.program_ended(program_id)
        self._served.pop(program_id, None)
