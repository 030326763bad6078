"""The interface between the driver and a backend that serves calls."""

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
"""The type of a function that a backend calls when a call has ended. The arguments are the program,
the call's index and the call's report.
"""


class Backend(ABC):
    """A backend: one or several engines. A *moment* is a time on the backend's own scale, which has
    seconds or whole engine steps as its unit.

    At each moment, the driver calls `serve`, then `submit` for each call that arrives, then
    `choose`.
    """

    same_moment: ClassVar[bool] = False
    """Whether a call without a gap arrives at the moment at which its last parent ends, before all
    other arrivals.
    """
    run_name: str = ""
    """A suffix of the programs' names. It differs between runs on the same engine."""
    words: Words = staticmethod(plain_words)
    """The function that makes the token ids of prompts."""

    @abstractmethod
    def next_moment(self, arrival: float) -> float:
        """Return the next moment at which the backend must be served; infinity if there is none.
        ``arrival`` is the moment of the next arrival.
        """

    @abstractmethod
    def serve(self, moment: float, ended: CallEnded) -> None:
        """Advance to ``moment``, and call ``ended`` for each call that has ended by then."""

    @abstractmethod
    def submit(self, live: LiveProgram, index: int) -> None:
        """Submit a call of a program."""

    def choose(self) -> None:
        """Decide which calls run, after all arrivals of this moment."""

    def moments(self, seconds: float) -> float:
        """Convert seconds to the backend's scale."""
        return seconds

    def seconds(self, moment: float) -> float:
        """Convert a moment to seconds."""
        return moment

    def ideal_s(self, program: ProgramShape) -> float:
        """Return the seconds from the arrival of a program to its end, if the program ran alone on
        an engine; NaN if unknown.
        """
        return math.nan

    # -- events that a backend may ignore ----------------------------------------------

    def expect(self, program: ProgramShape) -> None:
        """Prepare for a program that will arrive. Raises `ConfigError` if the program cannot be
        served.
        """

    def program_started(self, live: LiveProgram) -> None:
        """Handle the arrival of a program."""

    def boundary(self, program_id: str, change: str, name: str) -> None:
        """Handle the start or the end of a program's wait for a tool or a human."""

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        """Handle the end of a call, after the driver's table of programs was updated."""

    def program_ended(self, live: LiveProgram) -> None:
        """Handle the end of a program."""

    # -- counts ------------------------------------------------------------------------

    @property
    def counts(self) -> list[EngineCounts]:
        """The counts of each engine; empty for engines that are too simple to count."""
        return []

    @property
    def busy_s(self) -> list[float]:
        return []


BackendWrapper = Callable[[Backend], Backend]
"""A function that puts another backend in front of a backend, and returns the other backend."""


class ReplicaRouter:
    """A router for several engines, with a record of which engines have served each program."""

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
        """Choose an engine for a call, and return its index."""
        routed = self._calls[call_id] = self.dispatcher.send(question, self.views)
        index = routed.replica.index
        self._served.setdefault(question.program_id, {})[index] = None
        return index

    def ended(self, call_id: str, report: CallReport) -> None:
        self.dispatcher.ended(self._calls.pop(call_id), report)

    def served(self, program_id: str) -> list[int]:
        """Return the indexes of the engines that have served a program, in the order in which they
        first served it.
        """
        return list(self._served.get(program_id, ()))

    def program_ended(self, program_id: str) -> None:
        self.dispatcher.program_ended(program_id)
        self._served.pop(program_id, None)
