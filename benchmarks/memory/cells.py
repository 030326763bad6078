"""The cells of the memory benchmark. A cell is a run of programs under one contender, on an engine
whose KV cache holds only a share of the programs' contexts.
"""

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
from agentrt.lab.runs.machine import capacity_per_s
from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.replay import (
    UNSCALED,
    Scales,
)
from agentrt.lab.workloads.shape import (
    ProgramShape,
    cached_tokens,
    prompt_tokens,
)
from agentrt.lab.workloads.traces import Trace
from agentrt.request import CallReport
from benchmarks.cells import Load
from benchmarks.harness import Figures
from benchmarks.memory.held_out import HELD_OUT, daily
from benchmarks.rivals import CAP
from benchmarks.rivals.gates import CapGate, GatedBackend
from benchmarks.summaries import with_ideals
from benchmarks.workloads.agents import with_tools
from benchmarks.workloads.generate import WORKLOADS, generate
from benchmarks.workloads.source import Cut, WorkloadSource, rescaled

GPU = StepTimeModel()
SMALL_CPU = StepTimeModel(0.05, 0.75e-3, 1e-3, 0.0, "SmolLM2-135M, rounded", "one CPU core")
"""Approximate step times of SmolLM2-135M on one core of a CPU."""


@dataclass(frozen=True, slots=True)
class Work:
    """A workload: its generator, its number of programs, its load and its limits.

    ``scale`` multiplies its tokens. ``tokens`` is the model's maximum context. ``blocks`` is the
    size of the KV cache; by default it is a share of the working set. The prompts of ``bfcl`` would
    take almost no time on a GPU, so its step times are those of a small model on a CPU.
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
"""The default workloads of ``python -m benchmarks memory``. ``chat`` has a KV cache of fixed
size.
"""
RECORDED = "recorded"
HELD_OUT_WORKS: Mapping[str, Work] = {
    "long_coding": Work("long_coding", 20, 2.0, 0.3, tokens=20000),
    "map_reduce_64": Work("map_reduce_64", 8, 2.0, 0.2),
    "day": Work("day", 90, 1.2, 0.1, arrivals=daily),
}
"""Workloads that were made for seeds on which nothing is tuned. No constant of the scheduler is
tuned on them. On other seeds of ``map_reduce_64``, one rule was chosen.
"""
ALL_WORKS: Mapping[str, Work] = {
    **WORKS,
    "mixed": Work("mixed", 90, 2.0, scale=0.25, tokens=3072),
    RECORDED: Work(RECORDED, 14, 1.5, 0.1, tokens=20000),
    **HELD_OUT_WORKS,
}
"""All workloads. ``mixed`` is the paper's mixed workload; ``recorded`` draws programs from a
trace.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """A workload and the share of its working set that fits into the KV cache. ``tool_s`` is the
    median time, in seconds, of the workload's commonest tool.
    """

    workload: str
    memory: float
    tool_s: float

    def __str__(self) -> str:
        return f"{self.workload}, memory {self.memory:g}, tools {self.tool_s:g} s"


@dataclass(frozen=True, slots=True)
class MemoryLoad(Load):
    """A load and the memory that its programs need.

    ``ample`` is stock's run in virtual time with a KV cache for all programs. ``wants`` is the
    working set: the peak, in this run, of the number of tokens that are used again. The KV cache of
    the cell's engine has room for about ``fit`` programs.
    """

    ample: RunOutcome
    wants: int
    fit: float

    def capped(self, shares: Sequence[float]) -> list[str]:
        """Return the names of contenders that limit the concurrent programs. The limits are
        ``shares`` of the number of programs that fit into the KV cache.
        """
        caps = {max(1, round(share * self.fit)) for share in shares}
        return [f"{CAP}:{cap}" for cap in sorted(caps)]

    def figures(self, ran: RunOutcome) -> dict[str, float]:
        """Return the figures of a contender's run."""
        blocks, size = self.options.kv_blocks, self.options.block_size
        return {**figures(ran, self.ample), "blocks": blocks, "wanted": self.wants / size}


@dataclass(frozen=True, slots=True)
class Memory:
    """A factory of the loads of cells. ``slots`` is the number of batch slots, and ``count`` the
    number of programs. A field that is None has the workload's own value.

    ``scale`` multiplies the tokens of programs and the maximum context. ``block_size`` is the size
    of a KV-cache block in tokens. ``trace`` has the programs from which ``recorded`` draws. They
    are already scaled, and their gaps are multiples of the median time of a tool.
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
        """Return the programs of a cell with their arrival times."""
        work = ALL_WORKS[cell.workload]
        count = self.count or work.programs
        scale = Scales(work.scale * self.scale, work.scale * self.scale)
        if work.source == RECORDED:
            drawn = _drawn(self.trace, count, self.longest(cell), seed)
            programs = [rescaled(program, Scales(gap=cell.tool_s), exact=True) for program in drawn]
        else:
            programs = generate(work.source, count, seed, known={**WORKLOADS, **HELD_OUT})
            if scale != UNSCALED:
                programs = [rescaled(program, scale) for program in programs]
            programs = with_tools(programs, cell.tool_s, seed)
        programs = [Cut(tokens=self.longest(cell)).of(program) for program in programs]
        per_s = capacity_per_s(programs, self.slots, self.step_time or work.step_time)
        return work.arrivals(programs, (self.load or work.load) * per_s, seed)

    def longest(self, cell: Setup) -> int:
        """Return the maximum context of a cell's model, in tokens."""
        return round(self.scale * ALL_WORKS[cell.workload].tokens)

    def make(self, cell: Setup, seed: int) -> MemoryLoad:
        """Make the programs of a cell, and the engine whose KV cache holds a share of them."""
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
    """A setup as a workload of cells. ``bench`` makes its programs and engine."""

    bench: Memory
    setup: Setup

    def load(self, seed: int) -> MemoryLoad:
        """Make the programs and the engine."""
        return self.bench.make(self.setup, seed)


@dataclass(frozen=True, slots=True)
class Lineup:
    """The contenders of a cell: the contenders with ``names``, and one for each cap on the number
    of resident programs. ``caps`` are multiples of the number of programs that fit, which is known
    only when the cell's load has been made.
    """

    names: tuple[str, ...]
    caps: tuple[float, ...]

    def contenders(self, load: MemoryLoad) -> list[Contender]:
        """Return the contenders for a load."""
        return [contender(name) for name in (*self.names, *load.capped(self.caps))]


def in_virtual_time(load: MemoryLoad, lineup: Lineup) -> dict[str, Figures]:
    """Return the figures of each contender's run in virtual time."""
    return {each.name: load.figures(load.virtual(each)) for each in lineup.contenders(load)}


def figures(ran: RunOutcome, ample: RunOutcome) -> dict[str, float]:
    """Return the figures of a run. ``recomputed`` is the number of prefill tokens beyond the
    prefill of the run with ample memory; ``loaded`` and ``stored`` are tokens that were copied from
    and to host memory.

    The ideal time of a program comes from virtual time, because a real engine does not know the
    ideal time.
    """
    used, least = ran.counts.usage, ample.counts.usage
    jobs = with_ideals(ran, ample).outcomes
    prefill = used.uncached_tokens + used.recomputed_tokens
    return {
        **standard(jobs),
        "prefill": prefill,
        "recomputed": max(0, prefill - least.uncached_tokens - least.recomputed_tokens),
        "loaded": ran.counts.loaded_tokens,
        "stored": ran.counts.stored_tokens,
        "delay_s": max(job.latency_s - job.ideal_s for job in jobs),
    }


TRACE_SCALE = 0.1
_RECORDED_TOOL_S = 9.0
"""The median time of a tool of recorded coding agents, in seconds. Gaps are multiples of this
time.
"""


def recorded(trace: str, scale: float = TRACE_SCALE, tokenizer: str = "") -> Trace:
    """Read the file from which ``recorded`` draws programs. Tokens are multiplied by ``scale``, and
    gaps become multiples of the median time of a tool. Raises `ConfigError` if there is no file.
    """
    scales = Scales(scale, scale, 1 / _RECORDED_TOOL_S)
    source = WorkloadSource.named(trace, scales=scales, tokenizer=tokenizer)
    if source.path is None:
        raise ConfigError(f"--trace {trace!r} is not a file; name a file with recorded programs")
    return source.trace()


def _drawn(trace: Sequence[ProgramShape], count: int, tokens: int, seed: int) -> list[ProgramShape]:
    """Draw ``count`` programs from a trace. The first call of each drawn program fits into
    ``tokens``. Raises `ConfigError` if the trace has fewer such programs.
    """
    firsts = [(program, program.calls[0]) for program in trace]
    fits = [
        program for program, call in firsts if call.prompt_tokens + call.output_tokens <= tokens
    ]
    if count > len(fits):
        raise ConfigError(
            f"the trace has only {len(fits)} programs whose first call has at most {tokens} "
            f"tokens, but {count} are requested; use fewer --programs or a smaller --trace-scale"
        )
    return Random(f"drawn/{seed}").sample(fits, count)


# -- the working set: the peak of the tokens that programs use again, without evictions --


class _WorkingSetBackend(Virtual):
    """Stock vLLM, which also counts the tokens that programs use now or will use again."""

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
        """Return, for each call, the number of calls that extend this call and have not ended."""
        return Counter()


def added_tokens(program: ProgramShape, index: int) -> int:
    """Return the number of tokens that a call adds to its program's contexts, without shared
    prompts.
    """
    call = program.calls[index]
    return prompt_tokens(call) - cached_tokens(program, call) + call.output_tokens


def context_tokens(program: ProgramShape) -> int:
    """Return the number of different tokens that a program has computed by its end."""
    return sum(added_tokens(program, index) for index in range(len(program.calls)))


def with_ample_memory(
    programs: Sequence[ProgramShape],
    options: VirtualOptions,
    step_time: StepTimeModel,
    live: int | None = None,
) -> tuple[int, int, RunOutcome]:
    """Return the peak number of tokens that are used again, the number of programs at this peak,
    and the run under stock. If ``live`` is given, at most this number of programs is live at the
    same time; the programs that wait count, too.
    """
    backend = _WorkingSetBackend(Stock(), with_room_for_all(programs, options), step_time)
    ran = drive(backend if live is None else GatedBackend(backend, CapGate(live)), programs)
    return backend.peak + _shared(programs), backend.at_peak, ran


def with_room_for_all(programs: Sequence[ProgramShape], options: VirtualOptions) -> VirtualOptions:
    """Return the sizes of the engine with a KV cache that holds all tokens of all programs."""
    tokens = sum(map(context_tokens, programs)) + _shared(programs)
    blocks = options.kv_blocks + tokens // options.block_size + sum(len(p.calls) for p in programs)
    return replace(options, kv_blocks=blocks)


def _shared(programs: Sequence[ProgramShape]) -> int:
    return sum({program.type: program.system_tokens for program in programs}.values())
