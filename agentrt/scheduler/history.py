"""What finished programs teach about running ones: the service that is still to come.

The estimate is the mean residual life of programs of the same type and tenant that had
attained as much service (in bins of half a doubling), times a factor each for the turn, the
session's program before, and the node. Where few have been there, it shrinks to what needs
no past at all: a program that was served for ``a`` seconds along its critical path is
expected to need ``a`` more, which ranks as ATLAS does.

A hint of the size changes the unit: a program that is expected to be three times as large as
others of its kind (`HintLaw`) is compared, at three seconds, with those that had one. So all
programs of a kind teach about all its hints.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError
from agentrt.scheduler.ages import LONGEST_S, SMALLEST_S, age_bin, bin_edge
from agentrt.scheduler.hints import HintLaw
from agentrt.scheduler.saved import word
from agentrt.scheduler.table import ProgramRow

VERSION = 1
_MEMORY = 400.0
"""Programs that a cell remembers: older ones fade, so that a type may change."""
_CELLS = 4096
"""Cells kept, the least recently used ones dropped first: some 100 bytes each."""
_VISITS = 48
"""Cells noted of one running program."""
_SESSIONS = 1024
_LAWS = 1024
_FEW = 20
"""Programs below which there is no telling what is usual."""
_DOUBT = 8.0
"""Samples that a cell needs to count for half."""
_TELLING = 2.0
"""A node counts where it changes the estimate by this factor: one that says less would only
make a program's own calls overtake each other."""

Kind = tuple[str, str]
"""Tenant and type: per tenant, so that nobody can teach the scheduler falsehoods about others."""
Session = tuple[str, str]
"""Tenant and session, for the same reason."""
Key = tuple[Kind, int, str]
"""Kind, bin of attained service, and what more is known: "" for nothing."""


@dataclass(slots=True)
class Cell:
    """Faded count and mean of the service that was still to come (in units: seconds, unless
    hinted).
    """

    n: float = 0.0
    mean_s: float = 0.0

    def add(self, value_s: float) -> None:
        """One more sample; past `_MEMORY` of them the oldest fade."""
        self.n = min(self.n, _MEMORY - 1.0) + 1.0
        self.mean_s += (value_s - self.mean_s) / self.n

    def refine(self, estimate_s: float) -> float:
        """An estimate, moved towards this cell's mean as far as its samples count."""
        return estimate_s + (self.mean_s - estimate_s) * self.n / (self.n + _DOUBT)


class History:
    """Learns from programs that end; asked about programs that run. Bounded in size."""

    def __init__(self) -> None:
        self._cells: OrderedDict[Key, Cell] = OrderedDict()
        self._visits: dict[str, dict[Key, float]] = {}
        self._sessions: OrderedDict[Session, float] = OrderedDict()
        self._laws: OrderedDict[Kind, HintLaw] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cells)

    def expect(self, row: ProgramRow, node: str, path_s: float) -> float:
        """The seconds of service that a program is expected to need still.

        ``path_s`` is what ATLAS would rank by: the estimate where nothing is known.
        """
        unit = self.unit(row)
        aged = self._refined(row, "", max(path_s / unit, SMALLEST_S), unit)
        estimate = aged
        for what in self._details(row):
            estimate *= self._refined(row, what, aged, unit) / aged
        by_node = self._refined(row, f"node {node}", aged, unit) / aged
        if not 1.0 / _TELLING < by_node < _TELLING:
            estimate *= by_node
        return min(max(estimate * unit, SMALLEST_S), LONGEST_S)

    def usual(self, row: ProgramRow) -> float | None:
        """The mean service of a whole program like it (seconds); None where few have ended."""
        cell = self._cells.get((kind_of(row), 0, ""))
        return cell.mean_s * self.unit(row) if cell is not None and cell.n >= _FEW else None

    def learn(self, row: ProgramRow) -> None:
        """A program ended: what was still to come wherever it came by is known now."""
        total, unit = row.service_s, self.unit(row)
        visits = self._visits.pop(row.program_id, {})
        for level in range(age_bin(total / unit) + 1):
            visits.setdefault((kind_of(row), level, ""), bin_edge(level) * unit)
        for key, attained in visits.items():
            self._cell(key).add(max(total - attained, 0.0) / unit)
        if (hint := _hint(row)) is not None:
            self._law(kind_of(row)).add(hint, max(total, SMALLEST_S))
        if row.session is not None:
            session = (row.tenant, row.session)
            self._sessions[session] = total
            self._sessions.move_to_end(session)
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)

    def forget(self, row: ProgramRow) -> None:
        """A program went away without an end to learn from."""
        self._visits.pop(row.program_id, None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values: what survives a restart."""
        cells = [
            [*kind, level, what, cell.n, cell.mean_s]
            for (kind, level, what), cell in self._cells.items()
        ]
        sessions = [[*session, total] for session, total in self._sessions.items()]
        hints = [[*kind, *law.to_list()] for kind, law in self._laws.items()]
        return {"version": VERSION, "cells": cells, "sessions": sessions, "hints": hints}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what `to_dict` gave. Raises `ConfigError` for anything else."""
        try:
            version = values["version"]
            if version != VERSION:
                raise ConfigError(f"this history of programs has version {version}, not {VERSION}")
            cells = {
                ((word(tenant), word(kind)), int(level), word(what)): _cell_of(n, mean)
                for tenant, kind, level, what, n, mean in values["cells"]
            }
            sessions = {
                (word(tenant), word(session)): _seconds(total)
                for tenant, session, total in values["sessions"]
            }
            laws = {  # files of older versions have none
                (word(tenant), word(kind)): HintLaw.of(law)
                for tenant, kind, *law in values.get("hints", ())
            }
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"this is not a history of programs: {error!r}") from error
        self._cells = OrderedDict(list(cells.items())[-_CELLS:])
        self._sessions = OrderedDict(list(sessions.items())[-_SESSIONS:])
        self._laws = OrderedDict(list(laws.items())[-_LAWS:])

    def _details(self, row: ProgramRow) -> Iterator[str]:
        """What is known of a program beside its age, in words that its kin would share."""
        yield f"turn {int(2.0 * math.log2(row.finished_calls + 1))}"
        before = None if row.session is None else self._sessions.get((row.tenant, row.session))
        if before is not None:
            yield f"session {age_bin(before)}"

    def unit(self, row: ProgramRow) -> float:
        """The seconds of this program that count as one of a usual one of its kind."""
        law, hint = self._laws.get(kind_of(row)), _hint(row)
        if law is None:
            return 1.0
        return law.unhinted if hint is None else law.times(hint)

    def _refined(self, row: ProgramRow, what: str, estimate: float, unit: float) -> float:
        """An estimate refined by one cell; the program's visit there is noted."""
        key = (kind_of(row), age_bin(row.attained_s / unit), what)
        visits = self._visits.setdefault(row.program_id, {})
        if len(visits) < _VISITS:
            visits.setdefault(key, row.attained_s)
        cell = self._cells.get(key)
        return estimate if cell is None else max(cell.refine(estimate), SMALLEST_S)

    def _cell(self, key: Key) -> Cell:
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell()
            if len(self._cells) > _CELLS:
                self._cells.popitem(last=False)
        else:
            self._cells.move_to_end(key)
        return cell

    def _law(self, kind: Kind) -> HintLaw:
        law = self._laws.setdefault(kind, HintLaw())
        self._laws.move_to_end(kind)
        if len(self._laws) > _LAWS:
            self._laws.popitem(last=False)
        return law


def kind_of(row: ProgramRow) -> Kind:
    """Whose past tells about a program."""
    return row.tenant, row.type


def _hint(row: ProgramRow) -> float | None:
    """The hint of its size, if it is one: a positive number."""
    hint = row.size_hint
    return hint if isinstance(hint, int | float) and 0.0 < hint < math.inf else None


def _cell_of(n: Any, mean_s: Any) -> Cell:
    cell = Cell(float(n), _seconds(mean_s))
    if not 0.0 <= cell.n <= _MEMORY:
        raise ValueError(f"a cell of {n} samples")
    return cell


def _seconds(value: Any) -> float:
    if not 0.0 <= float(value) <= LONGEST_S:
        raise ValueError(f"{value} seconds of service")
    return float(value)
