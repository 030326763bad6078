"""An engine for tests of decisions that visits every step: B batch slots, one second each.

The core, the table and the policies are the real ones. What is left out is the model,
the memory, and prefill: a call is a number of decode steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallPreempted,
    CallStarted,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.state import EngineProgram, QueuedCall
from agentrt.scheduler.table import ProgramTotals


@dataclass(frozen=True, slots=True)
class ToyCall:
    """A call of ``steps`` decode steps that can start once the calls ``after`` it are done."""

    steps: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ToyProgram:
    """A program: its name, its calls (parents before children), and when it arrives (steps)."""

    name: str
    calls: tuple[ToyCall, ...]
    arrives: int = 0

    @classmethod
    def chain(cls, name: str, steps: Sequence[int], arrives: int = 0) -> ToyProgram:
        """A program of calls one after the other."""
        calls = (ToyCall(n, (i - 1,) if i else ()) for i, n in enumerate(steps))
        return cls(name, tuple(calls), arrives)

    @property
    def ideal(self) -> int:
        """Steps from start to end with the engine to itself and slots for all its calls."""
        ends: list[int] = []
        for call in self.calls:
            ends.append(max((ends[i] for i in call.after), default=0) + call.steps)
        return max(ends)


@dataclass(slots=True)
class ToyResult:
    """When each program ended (steps), and which calls ran in each step, as 'A0', 'B2', …"""

    ends: dict[str, int]
    timeline: list[list[str]]
    preemptions: int

    def waiting(self, programs: Sequence[ToyProgram]) -> int:
        """Steps that the programs spent neither arriving nor served, summed."""
        return sum(self.ends[p.name] - p.arrives - p.ideal for p in programs)


@dataclass(slots=True, eq=False)
class _Live:
    """A program under way: what each of its calls still needs, and its path to there."""

    program: ToyProgram
    row: EngineProgram
    left: list[int]
    path_s: list[float]
    emitted: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)


class ToyEngine:
    """Runs toy programs step by step under a scheduler configuration.

    Within a step: arrivals, then preemption and admission, then every running call gets
    one step of service; calls that end are replaced by their successors before the
    others are demoted.

    With ``strict`` the best B calls run in each step, as Algorithm 1 has it (lines
    32-39), and preempted calls, the worst first, go to the tail of their level. Without
    it, a running call gives way to a strictly better level only, and keeps its place:
    what we do in a real engine, where a preemption costs something.
    """

    def __init__(self, config: SchedulerConfig, batch: int, *, strict: bool = True) -> None:
        self.core = SchedulerCore(config)
        self._strict = strict and self.core.policy.levelled
        self.now = 0
        self.running: list[QueuedCall] = []
        self.ends: dict[str, int] = {}
        self.preemptions = 0
        self._batch = batch
        self._coming: list[ToyProgram] = []

    def run(self, programs: Sequence[ToyProgram], limit: int = 1_000_000) -> ToyResult:
        """Run all programs to their end. Raises `RuntimeError` past ``limit`` steps."""
        self.submit(programs)
        timeline: list[list[str]] = []
        while self.busy:
            if self.now >= limit:
                raise RuntimeError(f"not done after {limit} steps")
            timeline.append(self.step())
        return ToyResult(dict(self.ends), timeline, self.preemptions)

    def submit(self, programs: Sequence[ToyProgram]) -> None:
        """Have programs arrive, each at its time."""
        self._coming = sorted([*self._coming, *programs], key=lambda p: p.arrives)

    @property
    def busy(self) -> bool:
        """Whether a program is still to come or to end."""
        return bool(self._coming or len(self.core.table))

    def step(self) -> list[str]:
        """One step. The ids of the calls that ran in it."""
        while self._coming and self._coming[0].arrives <= self.now:
            self._arrive(self._coming.pop(0))
        self._choose()
        served = sorted(call.call_id for call in self.running)
        for live in self._serve():
            self.ends[live.program.name] = self.now
            self.core.handle(ProgramEnded(ProgramTotals.of(live.row), self.now))
        return served

    def _arrive(self, program: ToyProgram) -> None:
        row = self.core.table.start_program(program.name, "toy", self.now)
        lefts = [call.steps for call in program.calls]
        self._emit_ready(_Live(program, row, lefts, [0.0] * len(lefts)))

    def _emit_ready(self, live: _Live) -> None:
        for index, call in enumerate(live.program.calls):
            if index in live.emitted or not live.ended.issuperset(call.after):
                continue
            live.emitted.add(index)
            live.path_s[index] = max(
                (live.path_s[i] + live.program.calls[i].steps for i in call.after), default=0.0
            )
            call_id = f"{live.program.name}{index}"
            item = (live, index)
            made = QueuedCall(call_id, live.row, item, live.path_s[index], self.now)
            self.core.handle(CallArrived(made, self.now))
            self.core.queue.put(made)

    def _choose(self) -> None:
        core = self.core
        core.refresh_priorities(self.now)
        core.promote(self.now)
        self.running.sort(key=lambda call: call.key)
        for call in self._strict_victims() if self._strict else self._victims():
            self.running.remove(call)
            core.handle(CallPreempted(call, self.now))
            if self._strict:  # it goes to the tail of its level
                call.key = (*call.key[:2], next(core.queue._seqs))
            core.queue.put(call)
            self.preemptions += 1
        while len(self.running) < self._batch and core.queue.head() is not None:
            call = core.queue.take()
            core.handle(CallStarted(call, self.now))
            self.running.append(call)
        self.running.sort(key=lambda call: call.key)

    def _strict_victims(self) -> list[QueuedCall]:
        ranked = sorted([*self.running, *self.core.in_order()], key=lambda call: call.key)
        best = ranked[: self._batch]
        return [call for call in reversed(self.running) if call not in best]

    def _victims(self) -> list[QueuedCall]:
        free = self._batch - len(self.running)
        return [victim for victim, _ in self.core.victims(self.running, free)]

    def _serve(self) -> list[_Live]:
        """One step of service. The programs that ended with it."""
        self.now += 1
        ended = [call for call in self.running if self._step(call) == 0]
        self.running = [call for call in self.running if call not in ended]
        done = []
        for call in ended:
            self.core.handle(StepFinished([call.call_id], 1.0, self.now))
            live, index = call.item
            live.ended.add(index)
            self.core.handle(CallFinished(call, self.now))
            self._emit_ready(live)
            if len(live.ended) == len(live.left):
                done.append(live)
        for call in self.running:
            self.core.handle(StepFinished([call.call_id], 1.0, self.now))
        return done

    @staticmethod
    def _step(call: QueuedCall) -> int:
        live, index = call.item
        live.left[index] -= 1
        left: int = live.left[index]
        return left
