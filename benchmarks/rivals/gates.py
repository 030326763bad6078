"""Rivals that hold back programs in front of the engine: a cap, and ThunderAgent's rule.

Both rivals are gates. Like a proxy, they see only requests and the ends of requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from agentrt.lab.backends.gates import Gate


class Cap(Gate):
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
