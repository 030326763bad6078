"""The plan of ``benchmarks gpu``: the jobs, the sizes of the engine, and the cells that can run in
the time that is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from agentrt.errors import ConfigError
from agentrt.lab.reports.standard import GoodputLimits
from agentrt.lab.runs.contenders import DEFAULT, STOCK
from agentrt.lab.runs.grid import turns
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.gpu.report import CAPPED, OFFLOADS, UNCAPPED, Cell
from benchmarks.options import number
from benchmarks.rivals import THUNDER
from benchmarks.workloads.agents import LONGEST, swe_smith
from benchmarks.workloads.source import Cut, rescaled

ENGINES: Sequence[Sequence[str]] = ((STOCK, THUNDER), (DEFAULT,), *((name,) for name in OFFLOADS))
"""For each engine, the contenders that share it. The first engine is the engine of the baseline."""
_PRIORITY = (STOCK, DEFAULT, *OFFLOADS, THUNDER)
"""The contenders in the order in which they get the time."""
_LOAD_S = 60.0
"""Assumed seconds for starting an engine, before an engine was started here."""
_SLACK = 1.2
"""Assumed ratio of a cell's duration to its prediction, until the first cells have been
measured.
"""
_WARM_UP_S = 3.0


def goodput_limits(words: Iterable[str]) -> GoodputLimits:
    """Parse limits such as ``ttft:2000``, as in vLLM's ``--goodput``. Raises `ConfigError` for an
    unknown name, and for a value that is not a positive number.
    """
    values = {}
    for word in words:
        name, _, milliseconds = word.partition(":")
        such = "milliseconds, as in ttft:2000,tpot:100,jct:60000"
        if name not in GoodputLimits.__slots__:
            raise ConfigError(f"--goodput {word!r}: give {such}")
        values[name] = number(f"--goodput {name}", milliseconds, such)
    return GoodputLimits(**values)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an engine, and its jobs: ``jobs`` jobs of SWE-smith at ``per_s`` per second.

    ``tokens`` multiplies their tokens, and ``tools`` the seconds of their tools. ``turns`` is the
    maximum number of turns. The smaller KV cache has ``blocks`` blocks of ``block_size`` tokens.
    """

    blocks: int
    block_size: int
    slots: int
    longest: int
    jobs: int
    per_s: float
    tokens: float
    tools: float = 1.0
    turns: int | None = 6

    def whole(self) -> Size:
        """Return this size with all turns and the original tokens of the jobs, at the published
        rate at which an H100 has too little memory.
        """
        return replace(self, per_s=3.0, tokens=1.0, turns=None, longest=LONGEST)

    def programs(self, seed: int) -> list[ProgramShape]:
        scales, cut = Scales(self.tokens, self.tokens, self.tools), Cut(self.turns, self.longest)
        programs = swe_smith(self.per_s, seed)[: self.jobs]
        return [cut.of(rescaled(program, scales)) for program in programs]

    def flags(self, memory: str) -> list[str]:
        """Return vLLM's flags for an engine of this size."""
        cap = ["--num-gpu-blocks-override", str(self.blocks)] if memory == CAPPED else []
        sizes = {"--block-size": self.block_size, "--max-model-len": self.longest}
        return [*cap, *(str(word) for pair in sizes.items() for word in pair)]


SIZES: Mapping[str, Size] = {
    "llama-8b": Size(28_625, 16, 256, 32_768, jobs=100, per_s=6.0, tokens=2.0),
    "tiny": Size(64, 32, 4, 1024, jobs=8, per_s=20.0, tokens=0.1, tools=0.01, turns=3),
}
"""The sizes by model shape. 28,625 blocks are the 458,000 tokens of a published H100. ``tiny`` is
for trying the benchmark on a CPU, where vLLM's attention needs blocks of 32 tokens.
"""


def in_order(seeds: Sequence[int]) -> list[list[Cell]]:
    """Return the cells of each engine in the order of their runs. Each engine is started once, and
    the order of the contenders that share it alternates.
    """
    return [
        [Cell(memory, name, seed) for at, seed in enumerate(seeds) for name in turns(group, at)]
        for memory, groups in ((CAPPED, ENGINES), (UNCAPPED, ENGINES[::-1]))
        for group in groups
    ]


def engine_of(cell: Cell) -> tuple[str, str]:
    """Return a key that is equal for cells that share an engine."""
    return cell.memory, next(group[0] for group in ENGINES if cell.contender in group)


@dataclass(slots=True)
class Budget:
    """The time until ``ends_at``, and the cells that fit into this time according to virtual time.

    ``predicted_s`` has the predicted seconds by memory and contender. Finished runs correct the
    predictions. ``load_s`` is the time that the last start of an engine took.
    """

    ends_at: float
    clock: Callable[[], float] = time.monotonic
    load_s: float = _LOAD_S
    predicted_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _ratios: list[float] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends_at - self.clock())

    def ran(self, cell: Cell, seconds: float) -> None:
        """Record the seconds that a cell took."""
        self._ratios.append(seconds / max(1e-9, self.predicted_s[cell.memory, cell.contender]))

    def takes_s(self, cell: Cell) -> float:
        """Estimate the seconds of a cell. Without a prediction for the cell, use the prediction for
        the same contender with the smaller memory, or else the longest prediction.
        """
        known = self.predicted_s
        keys = ((memory, cell.contender) for memory in (cell.memory, CAPPED))
        seconds = [known[key] for key in keys if key in known]
        virtual_s = seconds[0] if seconds else max(known.values(), default=0.0)
        return _WARM_UP_S + virtual_s * (1.1 * fmean(self._ratios) if self._ratios else _SLACK)

    def fitting(self, left: Sequence[Cell], opened: tuple[str, str] | None = None) -> set[Cell]:
        """Return the cells that fit, including the starts of their engines. The engine ``opened``
        is already started.

        Cells with little memory have priority over cells with all memory, lower seeds over higher
        seeds, and then contenders in the order of `_PRIORITY`.
        """
        cells, used, seconds = set[Cell](), {opened}, self.left_s
        for cell in sorted(left, key=_rank):
            needs_s = self.takes_s(cell) + (0 if engine_of(cell) in used else self.load_s)
            if needs_s <= seconds:
                seconds -= needs_s
                cells.add(cell)
                used.add(engine_of(cell))
        return cells


def _rank(cell: Cell) -> tuple[bool, int, int]:
    return cell.memory != CAPPED, cell.seed, _PRIORITY.index(cell.contender)
