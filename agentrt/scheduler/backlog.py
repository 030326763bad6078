"""The backlog: how long it would take to serve all that is there.

First come, first served, nobody waits for longer than what was there before. The work that is
there is the same under every policy that lets no slot idle, so this tells any of them whether it
makes a program wait for longer than that. How much work it is, a life table for each kind of
programs says.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError
from agentrt.scheduler.ages import BINS, age_bin
from agentrt.scheduler.history import Kind, kind_of
from agentrt.scheduler.lifetable import LifeTable
from agentrt.scheduler.saved import word
from agentrt.scheduler.table import ProgramRow

_KINDS = 1024
"""Kinds kept, the least recently ended ones dropped first."""
_FEW = 8.0
"""Ends below which a kind's table says nothing: its programs count as any others then."""
_FADING = 4.0
"""The greatest backlog is forgotten within about so many times as long as it takes to serve."""
_SETTLES_S = 10.0
"""Seconds within which the measured width of a full batch follows the real one."""


@dataclass(slots=True)
class _Stay:
    """Where a live program is counted."""

    table: LifeTable
    age: int
    unit: float


class Backlog:
    """The programs that have calls in an engine, and the service that they still need.

    A program is to be `seen` when its calls are placed; it counts until it `rests` or `ended`.
    Before the first program with a hint nothing is counted: nobody is put off, and nobody asks.
    """

    def __init__(self, unit_of: Callable[[ProgramRow], float] = lambda row: 1.0) -> None:
        """``unit_of`` a program are the seconds that count as one of a usual one of its kind."""
        self._unit_of = unit_of
        self._tables: OrderedDict[Kind, LifeTable] = OrderedDict()
        self._any = LifeTable()  # of all kinds, in seconds
        self._stays: dict[str, _Stay] = {}
        self._left_s = 0.0
        self._greatest_s = 0.0
        self._at = 0.0
        self._width = 0.0
        self._full = False
        self._counts = False

    def __len__(self) -> int:
        return len(self._stays)

    @property
    def left_s(self) -> float:
        """The service that all programs here are expected to need still, in seconds."""
        return max(self._left_s, 0.0)

    def seen(self, row: ProgramRow) -> None:
        """A program has calls here."""
        if not self._counts:
            if row.size_hint is None:
                return
            self._counts = True
        stay = self._stays.get(row.program_id)
        if stay is None:
            stay = self._stays[row.program_id] = self._stay(row)
        else:
            age = age_bin(row.attained_s / stay.unit)
            if age == stay.age:
                return
            self._left_s += stay.table.leave(stay.age, stay.unit)
            stay.age = age
        self._left_s += stay.table.come(stay.age, stay.unit)

    def rests(self, row: ProgramRow) -> None:
        """None of a program's calls is here any more: it needs nothing for now."""
        stay = self._stays.pop(row.program_id, None)
        if stay is not None:
            self._left_s += stay.table.leave(stay.age, stay.unit)

    def ended(self, row: ProgramRow) -> None:
        """A program ended: its kind's table learns, and that of all kinds. O(ages)."""
        self._counts = self._counts or row.size_hint is not None
        if not self._counts:
            return
        self.rests(row)
        age = age_bin(row.service_s / self._unit_of(row))
        self._left_s += self._table(kind_of(row)).end(age)
        self._left_s += self._any.end(age_bin(row.service_s))

    def hinted(self, row: ProgramRow) -> bool:
        """Whether a program is expected to be larger than its kind's usual one, for its hint."""
        stay = self._stays.get(row.program_id)
        return row.size_hint is not None and stay is not None and stay.unit > 1.0

    def look(self, now: float, running: int, waiting: int, slots: int) -> None:
        """Watch how many calls are served at a time, before each step. O(1).

        ``running`` ones are served ``now`` while ``waiting`` ones wait: as many as fit, which
        memory may make fewer than ``slots``.
        """
        if not self._counts:
            return
        since, self._at = now - self._at, now
        if not self._width:
            self._width = float(slots)
        if self._full:
            self._width += (running - self._width) * -math.expm1(-since / _SETTLES_S)
        self._full = waiting > 0
        fading = math.exp(-since / (_FADING * self._greatest_s + 1.0))
        self._greatest_s = max(self._greatest_s * fading, self.left_s / max(self._width, 1.0))

    @property
    def greatest_s(self) -> float:
        """How many seconds the greatest backlog of late would take to serve. It fades.

        Infinitely many as long as few programs have ended: nobody knows then.
        """
        return self._greatest_s if _knows(self._any) else math.inf

    def to_rows(self) -> list[list[Any]]:
        """What was learned of each kind, as JSON-able values; the first row is of all kinds."""
        known = [(kind, table) for kind, table in self._tables.items() if table.reached]
        tables = [(("", ""), self._any), *known]
        return [[*kind, t.passed[: t.reached], t.ended[: t.reached]] for kind, t in tables]

    def load(self, rows: Any) -> None:
        """Know what `to_rows` gave, and nothing else. Raises `ConfigError`."""
        try:
            learned = [
                ((word(tenant), word(type)), _ages(passed, ended))
                for tenant, type, passed, ended in rows
            ]
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"these are no ages of programs: {error!r}") from error
        for table in (self._any, *self._tables.values()):
            self._left_s += table.learned([], [])
        for index, (kind, ages) in enumerate(learned[: _KINDS + 1]):
            table = self._table(kind) if index else self._any
            self._left_s += table.learned(*ages)
        self._counts = self._counts or self._any.reached > 0

    def _stay(self, row: ProgramRow) -> _Stay:
        table, unit = self._tables.get(kind_of(row)), self._unit_of(row)
        if table is None or not _knows(table):
            table, unit = self._any, 1.0
        return _Stay(table, age_bin(row.attained_s / unit), unit)

    def _table(self, kind: Kind) -> LifeTable:
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = LifeTable()
            if len(self._tables) > _KINDS:
                self._tables.popitem(last=False)  # its live programs still count in it
        else:
            self._tables.move_to_end(kind)
        return table


def _knows(table: LifeTable) -> bool:
    """Whether enough programs have ended for it to tell something."""
    return bool(table.passed) and table.passed[0] >= _FEW


def _ages(*lists: Sequence[Any]) -> list[list[float]]:
    """Counts by age, as many in each list."""
    counts = [[float(value) for value in values] for values in lists]
    sound = all(0.0 <= count < math.inf for values in counts for count in values)
    if len({len(values) for values in counts}) != 1 or len(counts[0]) > BINS or not sound:
        raise ValueError("counts by age that no programs can have left")
    return counts
