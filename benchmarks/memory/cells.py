"""Programs over a KV cache that holds a share of them, by every contender."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from agentrt.errors import ConfigError
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.program import LiveProgram, Stock
from agentrt.lab.reports.standard import standard
from agentrt.lab.runs.contenders import Contender, contender
from agentrt.lab.runs.grid import Source
from agentrt.lab.runs.machine import capacity_per_s
from agentrt.lab.workloads.arrivals import daily, poisson
from agentrt.lab.workloads.replay import UNSCALED, Scales, rescaled
from agentrt.lab.workloads.shape import Cut, ProgramShape, cached_tokens, prompt_tokens
from agentrt.lab.workloads.traces import Trace
from agentrt.request import CallReport
from benchmarks.cells import Load
from benchmarks.harness import Figures
from benchmarks.memory.held_out import HELD_OUT
from benchmarks.rivals import CAP
from benchmarks.workloads.agents import with_tools
from benchmarks.workloads.generate import WORKLOADS, generate

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
    arrivals: Callable[[Sequence[ProgramShape], float, int], list[ProgramShape]] = poisson


WORKS: Mapping[str, Work] = {
    "chat": Work("chat", 100, 2.0, scale=0.25, tokens=4096, blocks=1024),
    "assistant": Work("assistant", 80, 1.5, scale=0.5, tokens=4096),
    "bfcl": Work("react", 96, 2.0, 1.0, tokens=3000, step_time=SMALL_CPU),
    "coding": Work("coding", 30, 1.5, 0.1, tokens=14000),
    "lats": Work("lats", 12, 2.0, 0.05, tokens=2048),
    "deep": Work("deep", 16, 2.0, 0.1, tokens=6000),
}
"""By the names of ``python -m benchmarks memory``, which runs these; chat is the KV-bound one."""
RECORDED = "recorded"
HELD_OUT_WORKS: Mapping[str, Work] = {
    "long_coding": Work("long_coding", 20, 2.0, 0.3, tokens=20000),
    "map_reduce_64": Work("map_reduce_64", 8, 2.0, 0.2),
    "day": Work("day", 90, 1.2, 0.1, arrivals=daily),
}
"""Those that nothing is tuned on."""
ALL_WORKS: Mapping[str, Work] = {
    **WORKS,
    "mixed": Work("mixed", 90, 2.0, scale=0.25, tokens=3072),
    RECORDED: Work(RECORDED, 14, 1.5, 0.1, tokens=20000),
    **HELD_OUT_WORKS,
}
"""All that may be asked for: ``mixed`` is the paper's, ``recorded`` draws from a trace."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A workload over a share of its working set; ``tool_s`` is its commonest tool's median."""

    workload: str
    memory: float
    tool_s: float

    def __str__(self) -> str:
        return f"{self.workload}, memory {self.memory:g}, tools {self.tool_s:g} s"


@dataclass(frozen=True, slots=True)
class MemoryLoad(Load):
    """A load, and what its programs need.

    ``ample`` is stock's run in virtual time with memory for all; the programs together want
    ``wants`` tokens at a time then. The KV cache holds some ``fit`` of them.
    """

    ample: RunOutcome
    wants: int
    fit: float

    def capped(self, shares: Sequence[float]) -> list[str]:
        """Caps on programs at a time, given in multiples of those that fit."""
        return [f"{CAP}:{n}" for n in sorted({max(1, round(one * self.fit)) for one in shares})]

    def figures(self, ran: RunOutcome) -> dict[str, float]:
        """What came of a contender's run."""
        blocks, size = self.options.kv_blocks, self.options.block_size
        return {**figures(ran, self.ample), "blocks": blocks, "wanted": self.wants / size}


@dataclass(frozen=True, slots=True)
class Memory:
    """Makes cells' loads. ``slots`` calls run at a time; None leaves what the workload says.

    ``scale`` multiplies the tokens of programs, and the longest context that is taken; blocks of
    the KV cache have ``block_size`` of them.
    ``trace`` are the programs that ``recorded`` draws from, as many tokens as they shall have;
    their gaps are in multiples of the median tool's.
    """

    step_time: StepTimeModel | None = None
    slots: int = 16
    blocks: int | None = None
    count: int | None = None
    load: float | None = None
    trace: tuple[ProgramShape, ...] = ()
    scale: float = 1.0
    block_size: int = BLOCK_SIZE

    def programs(self, cell: Setup, seed: int) -> list[ProgramShape]:
        """The programs of a cell, each at its time."""
        work = ALL_WORKS[cell.workload]
        count = self.count or work.programs
        scale = Scales(work.scale * self.scale, work.scale * self.scale)
        if work.source == RECORDED:
            drawn = _drawn(self.trace, count, self.longest(cell), seed)
            made = [rescaled(one, Scales(gap=cell.tool_s), exact=True) for one in drawn]
        else:
            made = generate(work.source, count, seed, known={**WORKLOADS, **HELD_OUT})
            if scale != UNSCALED:
                made = [rescaled(one, scale) for one in made]
            made = with_tools(made, cell.tool_s, seed)
        made = [Cut(tokens=self.longest(cell)).of(one) for one in made]
        per_s = capacity_per_s(made, self.slots, self.step_time or work.step_time)
        return work.arrivals(made, (self.load or work.load) * per_s, seed)

    def longest(self, cell: Setup) -> int:
        """The longest context that a cell's model takes, in tokens."""
        return round(self.scale * ALL_WORKS[cell.workload].tokens)

    def make(self, cell: Setup, seed: int) -> MemoryLoad:
        """The programs of a cell, and the engine whose KV cache holds a share of them."""
        programs = self.programs(cell, seed)
        work, most, size = ALL_WORKS[cell.workload], self.longest(cell), self.block_size
        least = most // size + 2
        options = VirtualOptions(self.slots, least, size, max_model_len=most)
        times = self.step_time or work.step_time
        wanted, live, ample = with_ample_memory(programs, options, times)
        fixed = (work.blocks or 0) * BLOCK_SIZE // size
        share = max(least, math.ceil(cell.memory * wanted / size))
        blocks = self.blocks or fixed or share
        options = VirtualOptions(self.slots, blocks, size, max_model_len=most)
        return MemoryLoad(programs, options, times, ample, wanted, live * blocks * size / wanted)


@dataclass(frozen=True, slots=True)
class Scarce:
    """A setup whose programs and engine ``bench`` makes, as a workload of cells."""

    bench: Memory
    setup: Setup

    def load(self, seed: int) -> MemoryLoad:
        """The programs, and the engine."""
        return self.bench.make(self.setup, seed)


@dataclass(frozen=True, slots=True)
class Lineup:
    """All contenders of a cell: those with ``names``, and ``caps`` in multiples of what fits.

    Which numbers of programs the caps are is known once the cell's load is made.
    """

    names: tuple[str, ...]
    caps: tuple[float, ...]

    def contenders(self, load: MemoryLoad) -> list[Contender]:
        """The contenders for a load."""
        return [contender(name) for name in (*self.names, *load.capped(self.caps))]


def in_virtual_time(load: MemoryLoad, lineup: Lineup) -> dict[str, Figures]:
    """What came of each contender's run in virtual time."""
    return {each.name: load.figures(load.virtual(each)) for each in lineup.contenders(load)}


def figures(ran: RunOutcome, ample: RunOutcome) -> dict[str, float]:
    """What came of a run. ``recomputed`` is the prefill beyond that with ample memory.

    A program's time with the engine to itself is that of virtual time; no real engine knows it.
    """
    used, least = ran.counts.usage, ample.counts.usage
    jobs = ran.with_ideals(ample).outcomes
    prefill = used.uncached_tokens + used.recomputed_tokens
    return {
        **standard(jobs),
        "prefill": prefill,
        "recomputed": max(0, prefill - least.uncached_tokens - least.recomputed_tokens),
        "delay_s": max(one.latency_s - one.ideal_s for one in jobs),
    }


TRACE_SCALE = 0.1
_RECORDED_TOOL_S = 9.0
"""The median tool of recorded coding agents, in seconds: gaps are read in multiples of it."""


def recorded(trace: str, scale: float = TRACE_SCALE, tokenizer: str = "") -> Trace:
    """The programs of a file that ``recorded`` draws from, their tokens times ``scale``."""
    scales = Scales(scale, scale, 1 / _RECORDED_TOOL_S)
    source = Source.named(trace, scales=scales, tokenizer=tokenizer)
    if source.path is None:
        raise ConfigError(f"--trace {trace!r}: there is no such file")
    return source.trace()


def _drawn(trace: Sequence[ProgramShape], count: int, tokens: int, seed: int) -> list[ProgramShape]:
    """So many of a trace's programs whose first call fits."""
    firsts = [(one, one.calls[0]) for one in trace]
    fits = [one for one, call in firsts if call.prompt_tokens + call.output_tokens <= tokens]
    if count > len(fits):
        raise ConfigError(
            f"the trace has {len(fits)} programs whose first call has at most {tokens} tokens, and "
            f"{count} are asked for; give fewer --programs, or a smaller --trace-scale"
        )
    return Random(f"drawn/{seed}").sample(fits, count)


# -- the working set: the most that programs use again, when nothing is ever evicted -----


class _Watched(Virtual):
    """Stock vLLM, with an eye on the tokens that will be used again, or are not done with."""

    peak = held = programs = at_peak = 0

    def program_started(self, live: LiveProgram) -> None:
        super().program_started(live)
        self.programs += 1
        self._left.update(
            Counter(
                (live.row.program_id, call.extends)
                for call in live.shape.calls
                if call.extends is not None
            )
        )

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        self.held += added_tokens(live.shape, index)
        if self.held > self.peak:
            self.peak, self.at_peak = self.held, self.programs
        last: int | None = index
        while last is not None and not self._left[live.row.program_id, last]:
            self.held -= added_tokens(live.shape, last)
            last = live.shape.calls[last].extends
            if last is not None:
                self._left[live.row.program_id, last] -= 1

    def program_ended(self, live: LiveProgram) -> None:
        super().program_ended(live)
        self.programs -= 1

    @cached_property
    def _left(self) -> Counter[tuple[str, int]]:
        """By call: how many that extend it are still to be done with."""
        return Counter()


def added_tokens(program: ProgramShape, index: int) -> int:
    """What a call adds to what its program holds, shared prompts left out."""
    call = program.calls[index]
    return prompt_tokens(call) - cached_tokens(program, call) + call.output_tokens


def context_tokens(program: ProgramShape) -> int:
    """All that a program has computed at its end, each token once."""
    return sum(added_tokens(program, index) for index in range(len(program.calls)))


def with_ample_memory(
    programs: Sequence[ProgramShape], options: VirtualOptions, step_time: StepTimeModel
) -> tuple[int, int, RunOutcome]:
    """The most tokens at a time that are used again, of how many programs, and its run on stock."""
    backend = _Watched(Stock(), with_room_for_all(programs, options), step_time)
    ran = drive(backend, programs)
    return backend.peak + _shared(programs), backend.at_peak, ran


def with_room_for_all(programs: Sequence[ProgramShape], options: VirtualOptions) -> VirtualOptions:
    """The same engine with a KV cache that holds all that the programs ever compute."""
    tokens = sum(map(context_tokens, programs)) + _shared(programs)
    blocks = options.kv_blocks + tokens // options.block_size + sum(len(p.calls) for p in programs)
    return replace(options, kv_blocks=blocks)


def _shared(programs: Sequence[ProgramShape]) -> int:
    return sum({program.type: program.system_tokens for program in programs}.values())
