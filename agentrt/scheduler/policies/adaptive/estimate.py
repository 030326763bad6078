"""The service that a program is expected to need still, learned from programs that ended.

The estimate is a mean residual life: what programs of the same type and tenant needed still when
they had attained as much (in bins of half a doubling), refined by their hints' size, their turn
and their node. Where few have been there, it shrinks to what needs no past at all: a program that
was served for ``a`` seconds along its critical path is expected to need ``a`` more, which ranks
as ATLAS does.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from agentrt.errors import ConfigError
from agentrt.scheduler.table import ProgramRow

VERSION = 2
SMALLEST_S = 0.05
"""Seconds of service below which programs are not told apart."""
LONGEST_S = 1e9
"""No program is expected to need more, whatever a file says."""
_MEMORY = 400.0
"""Programs that a cell remembers: older ones fade, so that a type may change."""
_CELLS = 8192
"""Cells kept, the least recently used ones dropped first: some 100 bytes each."""
_ASKED = 48
"""Cells noted of one running program."""
_FEW = 20
"""Programs below which there is no telling what is usual."""
_DOUBT = 8.0
"""Samples that a cell needs to count for half."""
_TELLING = 2.0
"""A node counts where it changes the estimate by this factor: one that says less would only
make a program's own calls overtake each other."""

Key = tuple[str, str, int, str]
"""Tenant, type, bin of attained service, and what more is known: "" for nothing.

Per tenant, so that nobody can teach the scheduler falsehoods about others' programs.
"""


@dataclass(slots=True)
class Cell:
    """Faded count and mean of the service that was still to come (seconds)."""

    n: float = 0.0
    mean_s: float = 0.0

    def add(self, value_s: float) -> None:
        """One more sample; past `_MEMORY` of them the oldest fade."""
        self.n = min(self.n, _MEMORY - 1.0) + 1.0
        self.mean_s += (value_s - self.mean_s) / self.n

    def refine(self, estimate_s: float) -> float:
        """An estimate, moved towards this cell's mean as far as its samples count."""
        refined = estimate_s + (self.mean_s - estimate_s) * self.n / (self.n + _DOUBT)
        return max(refined, SMALLEST_S)


class History:
    """Learns from programs that end; asked about programs that run. Bounded in size."""

    def __init__(self) -> None:
        self._cells: OrderedDict[Key, Cell] = OrderedDict()
        self._asked: dict[str, dict[Key, float]] = {}
        """By running program: the cells it was looked up in, and what it had attained then."""

    def __len__(self) -> int:
        return len(self._cells)

    def expect(self, row: ProgramRow, node: str, path_s: float) -> float:
        """The seconds of service that a program is expected to need still.

        ``path_s`` is what ATLAS would rank by: the estimate where nothing is known.
        """
        age = age_bin(row.attained_s)
        asked = self._asked.get(row.program_id)
        if asked is None:
            asked = self._asked[row.program_id] = {}
        aged, factor, by_node = max(path_s, SMALLEST_S), 1.0, f"node {node}"
        for what in (*_always(row), _turn(row.finished_calls), by_node):
            key = (row.tenant, row.type, age, what)
            if len(asked) < _ASKED:
                asked.setdefault(key, row.attained_s)  # the program was there
            if (cell := self._cells.get(key)) is None:
                continue
            refined = cell.refine(aged)
            if not what:
                aged = refined
            elif what is not by_node or not 1.0 / _TELLING < refined / aged < _TELLING:
                factor *= refined / aged
        return min(max(aged * factor, SMALLEST_S), LONGEST_S)

    def usual(self, row: ProgramRow) -> float | None:
        """The mean service of a whole program like it (seconds); None where few have ended."""
        usual = None
        for what in _always(row):
            cell = self._cells.get((row.tenant, row.type, 0, what))
            usual = cell.mean_s if cell is not None and cell.n >= _FEW else usual
        return usual

    def learn(self, row: ProgramRow) -> None:
        """A program ended: what was still to come wherever it came by is known now."""
        total = row.service_s
        asked = self._asked.pop(row.program_id, {})
        always = _always(row)
        for age in range(age_bin(total) + 1):
            for what in always:
                asked.setdefault((row.tenant, row.type, age, what), bin_edge(age))
        cells = self._cells
        for key, attained in asked.items():
            cell = cells.get(key)
            if cell is None:
                cell = cells[key] = Cell()
            else:
                cells.move_to_end(key)
            cell.add(max(total - attained, 0.0))
        while len(cells) > _CELLS:
            cells.popitem(last=False)

    def forget(self, row: ProgramRow) -> None:
        """A program went away without an end to learn from."""
        self._asked.pop(row.program_id, None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values: what survives a restart."""
        cells = [[*key, cell.n, cell.mean_s] for key, cell in self._cells.items()]
        return {"version": VERSION, "cells": cells}

    def load(self, values: Mapping[str, Any]) -> None:
        """Take over what `to_dict` gave. Raises `ConfigError` for anything else."""
        try:
            if (version := values["version"]) != VERSION:
                raise ConfigError(f"this history of programs has version {version}, not {VERSION}")
            cells = [_read(*cell) for cell in values["cells"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"this is not a history of programs: {error!r}") from error
        self._cells = OrderedDict(cells[-_CELLS:])


def age_bin(seconds: float) -> int:
    """The bin of an attained service; 0 up to `SMALLEST_S`."""
    if not seconds > SMALLEST_S:
        return 0
    return 1 + int(2.0 * math.log2(min(seconds, LONGEST_S) / SMALLEST_S))


@cache
def bin_edge(age: int) -> float:
    """The least service of a bin, in seconds."""
    return SMALLEST_S * 2.0 ** ((age - 1) / 2.0) if age else 0.0


@lru_cache(maxsize=1024)
def _turn(finished_calls: int) -> str:
    """How many calls a program had, to half a doubling."""
    return f"turn {int(2.0 * math.log2(finished_calls + 1))}"


def _always(row: ProgramRow) -> tuple[str, ...]:
    """What a program is looked up by wherever it is: its type, and its size as far as it is known.

    A hint counts to a factor of two, and not at all where it is no positive number.
    """
    hint: object = row.size_hint
    if isinstance(hint, int | float) and 0.0 < hint < math.inf:
        return ("", f"hint {math.floor(math.log2(hint))}")
    return ("",)


def _read(tenant: Any, type: Any, age: Any, what: Any, n: Any, mean_s: Any) -> tuple[Key, Cell]:
    """A cell from a file. Raises `TypeError` or `ValueError` for what cannot be one."""
    if not all(isinstance(name, str) for name in (tenant, type, what)):
        raise TypeError(f"{(tenant, type, what)} are not all strings")
    cell = Cell(float(n), float(mean_s))
    if not (0.0 <= cell.n <= _MEMORY and 0.0 <= cell.mean_s <= LONGEST_S):
        raise ValueError(f"a cell of {n} samples and {mean_s} seconds")
    return (tenant, type, int(age), what), cell
