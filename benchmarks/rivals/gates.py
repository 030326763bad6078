"""Rivals that hold back programs in front of the engine: a cap, and ThunderAgent's rule.

Both rivals are gates, which hold back calls of programs before they reach an engine. Like a proxy,
they see only requests and the ends of requests.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from agentrt.lab.backends.base import Backend, CallEnded
from agentrt.lab.engine.virtual import EngineCounts
from agentrt.lab.program import LiveProgram
from agentrt.lab.workloads.shape import ProgramShape, prompt_tokens
from agentrt.request import CallReport


class Gate(ABC):
    """A gate, which decides which programs may call the engine."""

    every_s: ClassVar[float] = math.inf
    """Seconds between two calls of `tick`."""

    @abstractmethod
    def called(self, program_id: str, tokens: int, now: float) -> bool:
        """Return whether a call with a prompt of ``tokens`` tokens may go to the engine now."""

    def answered(self, program_id: str, tokens: int, now: float) -> None:  # noqa: B027  # optional
        """Handle the end of a call. ``tokens`` is the length of the prompt and the output."""

    @abstractmethod
    def ended(self, program_id: str) -> Iterable[str]:
        """Handle the end of a program, and return the programs whose calls may run from now on."""

    def tick(self, now: float) -> Iterable[str]:
        """Return the programs whose calls may run from now on. Called every ``every_s`` seconds."""
        return ()


class GatedBackend(Backend):
    """A backend behind a gate: only calls of programs that the gate lets through reach it."""

    def __init__(self, behind: Backend, gate: Gate) -> None:
        self.run_name, self.words = behind.run_name, behind.words
        self._behind, self._gate = behind, gate
        self._held: dict[str, list[tuple[LiveProgram, int]]] = {}
        self._next_tick_s = gate.every_s
        self._now_s = 0.0

    @override
    def next_moment(self, arrival: float) -> float:
        tick = self._behind.moments(self._next_tick_s) if self._held else math.inf
        return self._behind.next_moment(min(arrival, tick))

    @override
    def serve(self, moment: float, ended: CallEnded) -> None:
        self._now_s = self._behind.seconds(moment)
        self._behind.serve(moment, ended)
        while self._next_tick_s <= self._now_s:
            self._free(self._gate.tick(self._next_tick_s))
            self._next_tick_s += self._gate.every_s

    @override
    def submit(self, live: LiveProgram, index: int) -> None:
        name = live.row.program_id
        if self._gate.called(name, prompt_tokens(live.shape.calls[index]), self._now_s):
            self._behind.submit(live, index)
        else:
            self._held.setdefault(name, []).append((live, index))

    def _free(self, programs: Iterable[str]) -> None:
        """Submit the calls of programs that the gate releases."""
        for program_id in programs:
            for live, index in self._held.pop(program_id, ()):
                self._behind.submit(live, index)

    @override
    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        self._behind.call_ended(live, index, report)
        call = live.shape.calls[index]
        tokens = prompt_tokens(call) + call.output_tokens
        self._gate.answered(live.row.program_id, tokens, self._now_s)

    @override
    def program_ended(self, live: LiveProgram) -> None:
        self._behind.program_ended(live)
        self._free(self._gate.ended(live.row.program_id))

    # -- not changed by the gate -------------------------------------------------------------

    @override
    def choose(self) -> None:
        self._behind.choose()

    @override
    def moments(self, seconds: float) -> float:
        return self._behind.moments(seconds)

    @override
    def seconds(self, moment: float) -> float:
        return self._behind.seconds(moment)

    @override
    def ideal_s(self, program: ProgramShape) -> float:
        return self._behind.ideal_s(program)

    @override
    def expect(self, program: ProgramShape) -> None:
        self._behind.expect(program)

    @override
    def program_started(self, live: LiveProgram) -> None:
        self._behind.program_started(live)

    @override
    def boundary(self, program_id: str, change: str, name: str) -> None:
        self._behind.boundary(program_id, change, name)

    @property
    @override
    def counts(self) -> list[EngineCounts]:
        return self._behind.counts

    @property
    @override
    def busy_s(self) -> list[float]:
        return self._behind.busy_s


class CapGate(Gate):
    """A limit on the number of concurrent programs. A program counts from the time at which it is
    let through until its end. Other programs queue.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside: set[str] = set()
        self._line: OrderedDict[str, None] = OrderedDict()

    @override
    def called(self, program_id: str, tokens: int, now: float) -> bool:
        if program_id not in self._inside and len(self._inside) < self._most and not self._line:
            self._inside.add(program_id)
        if program_id in self._inside:
            return True
        self._line[program_id] = None
        return False

    @override
    def ended(self, program_id: str) -> Iterable[str]:
        self._inside.discard(program_id)
        if not self._line:
            return ()
        first, _ = self._line.popitem(last=False)
        self._inside.add(first)
        return (first,)


@dataclass(slots=True, eq=False)
class _Program:
    """The state of a program in ThunderAgent's router. ``paused_at`` is None while the program is
    active.
    """

    program_id: str
    tokens: int = 0
    requests: int = 0
    reasoning: bool = True
    acting_since: float = 0.0
    marked: bool = False
    paused_at: float | None = None


class ThunderAgent(Gate):
    """ThunderAgent's scheduler (arXiv 2602.13692; github.com/ThunderAgent-org/ThunderAgent, MIT).

    This class is a new implementation of ThunderAgent's public router of March 2026, with the
    router's defaults and one engine. A program is *reasoning* while one of its requests is in the
    engine; otherwise it is *acting*. The tokens of a program are the tokens of its last request. A
    new program is admitted at once if no program is paused and its prompt fits. Every five seconds,
    paused programs are resumed if their tokens fit: first programs with a waiting request, then new
    programs, then programs that are still in a tool, each group in ascending order of tokens. Then,
    if more tokens are used than fit, programs are paused until the rest fits: first acting
    programs, at once, and then reasoning programs, which are marked and paused at their next
    answer, each group in ascending order of tokens. For each program, 100 tokens are reserved in
    addition to its own tokens. After 30 minutes, a paused program is resumed in any case.

    With ``decay``, which is also an option of the published router, the tokens of a program that
    has been acting for t seconds count 2^-t times when programs are resumed. In the published code,
    the tokens of a marked program still count until its answer, so that one overflow marks all
    programs. Here, the tokens of a marked program do not count, as the comments of the published
    code intend.
    """

    every_s: ClassVar[float] = 5.0
    _BUFFER: ClassVar[int] = 100
    _FORCED_S: ClassVar[float] = 1800.0

    def __init__(self, capacity: int, *, decay: bool = False) -> None:
        self._capacity = capacity
        self._decay = decay
        self._programs: dict[str, _Program] = {}

    @override
    def called(self, program_id: str, tokens: int, now: float) -> bool:
        program = self._programs.get(program_id)
        if program is None:
            enters = not self._paused() and self._room(now) >= tokens + self._BUFFER
            program = self._programs[program_id] = _Program(program_id)
            program.paused_at = None if enters else now
        program.requests += 1
        program.tokens, program.reasoning = tokens, True
        return program.paused_at is None

    @override
    def answered(self, program_id: str, tokens: int, now: float) -> None:
        program = self._programs[program_id]
        program.tokens, program.reasoning, program.acting_since = tokens, False, now
        if program.marked:
            program.marked, program.paused_at = False, now

    @override
    def ended(self, program_id: str) -> Iterable[str]:
        self._programs.pop(program_id)
        return ()  # programs are resumed only at ticks

    @override
    def tick(self, now: float) -> Iterable[str]:
        resumed = self._resume(now)
        while self._room(now) < 0 and self._pause_one(now):
            pass
        return [program.program_id for program in resumed]

    def _resume(self, now: float) -> list[_Program]:
        room = self._room(now, decay=self._decay)
        resumed = []
        for program in sorted(self._paused(), key=_resumed_first):
            needed = program.tokens + self._BUFFER
            if needed <= room or now - (program.paused_at or 0.0) >= self._FORCED_S:
                program.paused_at = None
                room -= needed
                resumed.append(program)
        return resumed

    def _pause_one(self, now: float) -> bool:
        able = [program for program in self._active() if not program.marked]
        if not able:
            return False
        program = min(able, key=lambda program: (program.reasoning, program.tokens))
        if program.reasoning:
            program.marked = True
        else:
            program.paused_at = now
        return True

    def _room(self, now: float, *, decay: bool = False) -> float:
        used = 0.0
        for program in self._active():
            if program.marked:
                continue
            fades = decay and not program.reasoning
            weight = 2.0 ** (program.acting_since - now) if fades else 1.0
            used += program.tokens * weight + self._BUFFER
        return self._capacity - used

    def _active(self) -> list[_Program]:
        return [program for program in self._programs.values() if program.paused_at is None]

    def _paused(self) -> list[_Program]:
        return [program for program in self._programs.values() if program.paused_at is not None]


def _resumed_first(program: _Program) -> tuple[int, int]:
    if program.requests == 1:
        return (1, program.tokens)
    return (0 if program.reasoning else 2, program.tokens)
