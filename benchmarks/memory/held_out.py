"""Workloads on which no rule or constant of the scheduler was tuned, or may be tuned.

These workloads show whether a change of the scheduler also helps programs for which the change was
not made. Do not use the workloads for anything else: once a constant is tuned on them, they no
longer show this. All sizes are our assumptions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.workloads.generate import Generator
from benchmarks.workloads.sizes import Gaps, ProgramBuilder, Sizes

# -- long-context coding -------------------------------------------------------------------

CATALOGUE = 6000
_STEPS = Sizes(mean=26, spread=0.5, low=10, high=60)
_ISSUE = Sizes(mean=900, spread=0.8, low=100, high=5000)
_LISTING = Sizes(mean=220, spread=1.0, low=20, high=2500)
_EDIT = Sizes(mean=45, spread=0.8, high=500)


def long_coding(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a coding agent: an issue, then tens of calls with a tool between each two.

    All agents share a system prompt and a tool catalogue of `CATALOGUE` tokens. These tokens are
    most of an agent's first prompt, and about half of its last prompt.
    """
    builder = ProgramBuilder(rng, system_tokens=CATALOGUE)
    last = builder.call("step", _EDIT, _ISSUE)
    for _ in range(_STEPS.draw(rng) - 1):
        last = builder.call(
            "step", _EDIT, _LISTING, after=(last,), extends=last, gap_s=gaps.tool(rng)
        )
    return builder.build(program_id, "long_coding")


# -- map-reduce ----------------------------------------------------------------------------

BRANCHES, REDUCED = 64, 8
INSTRUCTION = 500
_CHUNK = Sizes(mean=600, spread=0.3, low=100, high=1500)
_LOOKUP = Sizes(mean=120, spread=0.8, high=800)
_NOTE = Sizes(mean=30, spread=0.5, high=300)
_DIGEST = Sizes(mean=100, spread=0.4, high=600)


def map_reduce_64(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make 64 parallel branches, each with a chunk of its own. Further calls combine eight results
    each, until one result is left.

    A branch reads its chunk, looks something up, and takes notes. All calls of all programs begin
    with the same instruction.
    """
    builder = ProgramBuilder(rng, system_tokens=INSTRUCTION)
    level = []
    for _ in range(BRANCHES):
        read = builder.call("read", _NOTE, _CHUNK)
        level.append(
            builder.call("note", _NOTE, _LOOKUP, after=(read,), extends=read, gap_s=gaps.tool(rng))
        )
    while len(level) > 1:
        groups = [level[i : i + REDUCED] for i in range(0, len(level), REDUCED)]
        level = [builder.call("reduce", _DIGEST, 40, after=group, quotes=group) for group in groups]
    return builder.build(program_id, "map_reduce_64")


# -- a day of tenants ----------------------------------------------------------------------

TOOLS = {"lookup": 1.0, "job": 60.0}
"""The median times of tools, as multiples of `Gaps.tool_s`: a job takes sixty times as long as a
lookup.
"""
_SPREAD = 0.6


@dataclass(frozen=True, slots=True)
class Agent:
    """The programs of one tenant: a plan, ``branches`` chains of ``steps`` calls, and, if there are
    several chains, an answer.
    """

    tenant: str
    tool: str
    steps: Sizes
    system_tokens: int
    task: Sizes
    result: Sizes
    output: Sizes
    branches: int = 1

    def __call__(self, rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
        builder = ProgramBuilder(rng, system_tokens=self.system_tokens)
        plan = builder.call("plan", self.output, self.task)
        ends = [self._branch(builder, rng, gaps, plan) for _ in range(self.branches)]
        if self.branches > 1:
            builder.call("answer", self.output, 40, after=ends, extends=plan, quotes=ends)
        shape = builder.build(program_id, f"{self.tenant}_{self.tool}")
        return replace(shape, tenant=self.tenant)

    def _branch(self, builder: ProgramBuilder, rng: Random, gaps: Gaps, last: int) -> int:
        for _ in range(self.steps.draw(rng)):
            last = builder.call(
                "step",
                self.output,
                self.result,
                after=(last,),
                extends=last,
                gap_s=gaps.tool_s * TOOLS[self.tool] * rng.lognormvariate(0.0, _SPREAD),
                tool=self.tool,
            )
        return last


def _sizes(mean: float, high: float = 10) -> Sizes:
    """Return sizes of at most ``high`` times their mean."""
    return Sizes(mean, 0.7, high=high * mean)


SHOP = Agent("shop", "lookup", _sizes(4), 1500, _sizes(150), _sizes(200), _sizes(50))
NEWS = Agent("news", "lookup", _sizes(3), 600, _sizes(80), _sizes(500), _sizes(60), branches=4)
BANK = Agent("bank", "job", _sizes(8), 2000, _sizes(400), _sizes(300), _sizes(70))
WORKS = Agent("works", "job", _sizes(16), 3000, _sizes(1500, high=3), _sizes(150), _sizes(40))

SWING = 0.8
"""Amplitude of the arrival rate over a day, as a share of the mean rate."""


def daily(programs: Sequence[ProgramShape], rate_per_s: float, seed: int) -> list[ProgramShape]:
    """Return Poisson arrivals whose rate follows one sine wave, with mean ``rate_per_s``.

    The period of the wave is the time in which all programs arrive on average.
    """
    day_s, rng = len(programs) / rate_per_s, Random(f"daily/{seed}")
    due = accumulate(rng.expovariate(1.0) for _ in programs)
    return [
        program.arriving(day_s * _hour(work / len(programs)))
        for program, work in zip(programs, due, strict=True)
    ]


def _hour(due: float) -> float:
    """Return the time of the day, from 0 to 1, at which a share ``due`` of the day's programs has
    arrived on average.

    The share that has arrived is a linear function of the time, minus a sine. The inverse of this
    function is computed by bisection.
    """
    low, high = due - SWING, due + SWING
    for _ in range(50):
        middle = (low + high) / 2
        early = middle - SWING / math.tau * math.sin(math.tau * middle) < due
        low, high = (middle, high) if early else (low, middle)
    return high


HELD_OUT: Mapping[str, tuple[Generator, ...]] = {
    "long_coding": (long_coding,),
    "map_reduce_64": (map_reduce_64,),
    "day": (SHOP, SHOP, SHOP, NEWS, BANK, WORKS),
}
