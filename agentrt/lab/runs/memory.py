"""Programs over a KV cache that holds a share of them, by every contender."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from agentrt.errors import ConfigError
from agentrt.lab.bench.results import Figures
from agentrt.lab.driver import drive
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Ran
from agentrt.lab.runs.machine import capacity_per_s
from agentrt.lab.runs.rivals import CAP, rival
from agentrt.lab.runs.working_set import with_ample_memory
from agentrt.lab.workloads.agents import with_tools
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.generate import generate
from agentrt.lab.workloads.replay import Scales, rescaled
from agentrt.lab.workloads.shape import Cut, ProgramShape

GPU = StepTimeModel()
SMALL_CPU = StepTimeModel(0.05, 0.75e-3, 1e-3, 0.0, "SmolLM2-135M, rounded", "one CPU core")
"""About what a step of a small model takes on one core (docs/results/overhead.md)."""


@dataclass(frozen=True, slots=True)
class Work:
    """A workload: its generator, how many programs arrive at which load, and their limits.

    ``scale`` multiplies its tokens. ``tokens`` is the longest context that the model takes.
    ``blocks`` fixes the KV cache, which else is a share of the working set. On a GPU the prompts
    of ``bfcl`` are computed in no time, so its steps are those of a small model on a CPU.
    """

    source: str
    programs: int
    load: float
    tool_s: float = 0.0
    scale: float = 1.0
    tokens: int = 8192
    blocks: int | None = None
    step_time: StepTimeModel = GPU


WORKS: Mapping[str, Work] = {
    "chat": Work("chat", 100, 2.0, scale=0.25, tokens=4096, blocks=1024),
    "assistant": Work("assistant", 80, 1.5, scale=0.5, tokens=4096),
    "bfcl": Work("react", 96, 2.0, 1.0, tokens=3000, step_time=SMALL_CPU),
    "coding": Work("coding", 30, 1.5, 0.1, tokens=14000),
    "lats": Work("lats", 12, 2.0, 0.05, tokens=2048),
    "deep": Work("deep", 16, 2.0, 0.1, tokens=6000),
}
"""By the names of ``agentrt bench memory``; chat is the KV-bound one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload over a share of its working set; ``tool_s`` is its commonest tool's median."""

    workload: str
    memory: float
    tool_s: float

    def __str__(self) -> str:
        return f"{self.workload}, memory {self.memory:g}, tools {self.tool_s:g} s"


@dataclass(frozen=True, slots=True)
class Memory:
    """Runs cells. ``slots`` calls run at a time; None leaves what the workload says.

    ``trace`` are recorded programs, which take the place of those of ``coding``; their gaps are
    in multiples of the median tool's.
    """

    step_time: StepTimeModel | None = None
    slots: int = 16
    blocks: int | None = None
    count: int | None = None
    load: float | None = None
    trace: Sequence[ProgramShape] | None = None

    def programs(self, cell: Cell, seed: int) -> list[ProgramShape]:
        """The programs of a cell, each at its time."""
        work = WORKS[cell.workload]
        count = self.count or work.programs
        if work.source == "coding" and self.trace is not None:
            drawn = _drawn(self.trace, count, seed)
            made = [rescaled(one, Scales(gap=cell.tool_s), Counter()) for one in drawn]
        else:
            made = generate(work.source, count, seed)
            if work.scale != 1:
                scales = Scales(work.scale, work.scale)
                made = [rescaled(one, scales, Counter()) for one in made]
            made = with_tools(made, cell.tool_s, seed)
        made = [Cut(tokens=work.tokens).of(one) for one in made]
        per_s = capacity_per_s(made, self.slots, self.step_time or work.step_time)
        return poisson(made, (self.load or work.load) * per_s, seed)

    def run(
        self,
        cell: Cell,
        seed: int,
        names: Sequence[str],
        caps: Sequence[float],
        tell: Callable[[str], None],
    ) -> dict[str, Figures]:
        """Every contender's figures; ``caps`` are in multiples of the programs that fit."""
        programs = self.programs(cell, seed)
        work = WORKS[cell.workload]
        least = work.tokens // BLOCK_SIZE + 2
        options = VirtualOptions(self.slots, least, BLOCK_SIZE, max_model_len=work.tokens)
        times = self.step_time or work.step_time
        wanted, live, ample = with_ample_memory(programs, options, times)
        blocks = (
            self.blocks or work.blocks or max(least, math.ceil(cell.memory * wanted / BLOCK_SIZE))
        )
        options = VirtualOptions(self.slots, blocks, BLOCK_SIZE, max_model_len=work.tokens)
        fits = live * blocks * BLOCK_SIZE / wanted
        tried = sorted({max(1, round(share * fits)) for share in caps})
        found: dict[str, Figures] = {}
        for name in [*names, *(f"{CAP}:{cap}" for cap in tried)]:
            tell(f"  {name}")
            ran = drive(rival(name)(options, times), programs)
            size = {"blocks": blocks, "wanted": wanted / BLOCK_SIZE}
            found[name] = {**figures(ran, ample), **size}
        return found


def figures(ran: Ran, ample: Ran) -> dict[str, float]:
    """What came of a run. ``recomputed`` is the prefill beyond that with ample memory."""
    summary, used, least = ran.summary(), ran.counts.usage, ample.counts.usage
    prefill = used.uncached_tokens + used.recomputed_tokens
    return {
        "ms_per_token": 1e3 * summary.token_latency_s,
        "hits": ran.counts.hit_share,
        "mean_s": summary.mean_s,
        "p95_s": summary.p95_s,
        "p99_s": summary.p99_s,
        "makespan_s": summary.makespan_s,
        "prefill": prefill,
        "recomputed": max(0, prefill - least.uncached_tokens - least.recomputed_tokens),
        "delay_s": max(one.latency_s - one.ideal_s for one in ran.outcomes),
    }


def _drawn(trace: Sequence[ProgramShape], count: int, seed: int) -> list[ProgramShape]:
    if count > len(trace):
        raise ConfigError(f"the trace has {len(trace)} programs, {count} are asked for")
    return Random(f"drawn/{seed}").sample(list(trace), count)
