"""Rivals that hold programs back before the engine: a plain cap, and ThunderAgent's rule.

Both stand before an engine, as a proxy does, and see requests and their ends only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from agentrt.lab.backends.gates import Gate


class Cap(Gate):
    """At most so many programs at a time, from their first call to their end; the others queue."""

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
    """What ThunderAgent's router keeps of a program: ``paused_at`` is None while it is active."""

    program_id: str
    tokens: int = 0
    requests: int = 0
    reasoning: bool = True
    acting_since: float = 0.0
    marked: bool = False
    paused_at: float | None = None


class ThunderAgent(Gate):
    """ThunderAgent's scheduler (arXiv 2602.13692; github.com/ThunderAgent-org/ThunderAgent, MIT).

    Written anew from its public router of March 2026, with its defaults and one engine. A program
    is *reasoning* while a request of it is in the engine, else *acting*; its tokens are those of
    its last request. A new program enters at once if nobody is paused and its prompt fits. Every
    five seconds paused programs are resumed while their tokens fit: first those that have asked,
    then new ones, then those still in a tool, each group by tokens, the fewest first. Then, if
    more is used than there is, programs are paused until it fits: acting ones at once, reasoning
    ones at their next answer, the fewest tokens first. 100 tokens beside each program's own are
    reserved, and after 30 minutes a paused one is resumed whatever there is.

    With ``decay`` the tokens of a program that has been acting for t seconds count 2^-t when others
    are resumed; there, too, it is an option. As published, a marked program's tokens still count
    until its answer, so that one overflow marks all; here they count as gone, as the code's
    comments intend.
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
        return ()  # it resumes others at its ticks only

    @override
    def tick(self, now: float) -> Iterable[str]:
        resumed = self._resume(now)
        while self._room(now) < 0 and self._pause_one(now):
            pass
        return [one.program_id for one in resumed]

    def _resume(self, now: float) -> list[_Program]:
        room = self._room(now, decay=self._decay)
        resumed = []
        for one in sorted(self._paused(), key=_resumed_first):
            needed = one.tokens + self._BUFFER
            if needed <= room or now - (one.paused_at or 0.0) >= self._FORCED_S:
                one.paused_at = None
                room -= needed
                resumed.append(one)
        return resumed

    def _pause_one(self, now: float) -> bool:
        able = [one for one in self._active() if not one.marked]
        if not able:
            return False
        one = min(able, key=lambda one: (one.reasoning, one.tokens))
        if one.reasoning:
            one.marked = True
        else:
            one.paused_at = now
        return True

    def _room(self, now: float, *, decay: bool = False) -> float:
        used = 0.0
        for one in self._active():
            if one.marked:
                continue
            fades = decay and not one.reasoning
            weight = 2.0 ** (one.acting_since - now) if fades else 1.0
            used += one.tokens * weight + self._BUFFER
        return self._capacity - used

    def _active(self) -> list[_Program]:
        return [one for one in self._programs.values() if one.paused_at is None]

    def _paused(self) -> list[_Program]:
        return [one for one in self._programs.values() if one.paused_at is not None]


def _resumed_first(one: _Program) -> tuple[int, int]:
    if one.requests == 1:
        return (1, one.tokens)
    return (0 if one.reasoning else 2, one.tokens)
