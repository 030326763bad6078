"""What ``benchmarks gpu`` runs: jobs, the engine's size, the cells, and which fit in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from agentrt.lab.runs.contenders import DEFAULT, STOCK
from agentrt.lab.runs.grid import turns
from agentrt.lab.workloads.replay import Scales, rescaled
from agentrt.lab.workloads.shape import Cut, ProgramShape
from benchmarks.gpu.report import CAPPED, OFFLOAD, UNCAPPED, Cell
from benchmarks.rivals import THUNDER
from benchmarks.workloads.agents import LONGEST, swe_smith

ENGINES: Sequence[Sequence[str]] = ((STOCK, THUNDER), (DEFAULT,), (OFFLOAD,))
"""Contenders by the engine that they share, the baseline's first."""
_LOAD_S = 60.0
"""What starting an engine takes, before one was started here."""
_SLACK = 1.2
"""A cell may take so much longer than virtual time says, until cells were measured."""
_WARM_UP_S = 3.0


@dataclass(frozen=True, slots=True)
class Size:
    """An engine's size, and the jobs: SWE-smith's, ``jobs`` of them, at ``per_s`` a second.

    Their tokens are multiplied by ``tokens``, and the seconds of their tools by ``tools``; no more
    than ``turns`` are made. The cap is ``blocks`` of ``block_size`` tokens.
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
        """With the jobs whole, at the published rate at which an H100 has too little memory."""
        return replace(self, per_s=3.0, tokens=1.0, turns=None, longest=LONGEST)

    def programs(self, seed: int) -> list[ProgramShape]:
        scales, cut = Scales(self.tokens, self.tokens, self.tools), Cut(self.turns, self.longest)
        some = swe_smith(self.per_s, seed)[: self.jobs]
        return [cut.of(rescaled(one, scales)) for one in some]

    def flags(self, memory: str) -> list[str]:
        """VLLM's, for an engine of this size."""
        cap = ["--num-gpu-blocks-override", str(self.blocks)] if memory == CAPPED else []
        sizes = {"--block-size": self.block_size, "--max-model-len": self.longest}
        return [*cap, *(str(word) for pair in sizes.items() for word in pair)]


SIZES: Mapping[str, Size] = {
    "llama-8b": Size(28_625, 16, 256, 32_768, jobs=100, per_s=6.0, tokens=2.0),
    "tiny": Size(64, 32, 4, 1024, jobs=8, per_s=20.0, tokens=0.1, tools=0.01, turns=3),
}
"""By the model's shape. 28,625 blocks are the 458,000 tokens of a published H100; ``tiny`` is for
trying all of it on a CPU, whose attention wants blocks of 32."""


def in_order(seeds: Sequence[int]) -> list[list[Cell]]:
    """The cells by engine, as they run. Each engine is opened once; who shares it alternates."""
    return [
        [Cell(memory, who, seed) for at, seed in enumerate(seeds) for who in turns(group, at)]
        for memory, groups in ((CAPPED, ENGINES), (UNCAPPED, ENGINES[::-1]))
        for group in groups
    ]


def engine_of(cell: Cell) -> tuple[str, str]:
    """What cells that share an engine have in common."""
    return cell.memory, next(group[0] for group in ENGINES if cell.contender in group)


@dataclass(slots=True)
class Budget:
    """Which cells fit into the time until ``ends_at``, by what virtual time says they take.

    ``predicted_s`` are a contender's seconds over a memory. As runs end, they are compared with
    them; an engine's start is taken to last ``load_s``, as long as the last one did.
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
        """A cell took so long."""
        self._ratios.append(seconds / max(1e-9, self.predicted_s[cell.memory, cell.contender]))

    def takes_s(self, cell: Cell) -> float:
        """About what a cell will take. Where nobody knows yet, it is what the same contender takes
        over a part of the memory, or who takes longest.
        """
        known = self.predicted_s
        keys = ((memory, cell.contender) for memory in (cell.memory, CAPPED))
        found = [known[key] for key in keys if key in known]
        virtual_s = found[0] if found else max(known.values(), default=0.0)
        return _WARM_UP_S + virtual_s * (1.1 * fmean(self._ratios) if self._ratios else _SLACK)

    def fitting(self, left: Sequence[Cell], opened: tuple[str, str] | None = None) -> set[Cell]:
        """Those of the cells that fit, with the starts of their engines; one is ``opened``.

        The first seed over little memory matters most, then the others over it.
        """
        found, used, seconds = set[Cell](), {opened}, self.left_s
        order = {CAPPED: 0, UNCAPPED: 1}
        for cell in sorted(left, key=lambda one: (order[one.memory], one.seed)):
            needs_s = self.takes_s(cell) + (0 if engine_of(cell) in used else self.load_s)
            if needs_s <= seconds:
                seconds -= needs_s
                found.add(cell)
                used.add(engine_of(cell))
        return found
