"""Coding agents whose sizes are those that others published of SWE-smith's trajectories.

Not the trajectories: 100 jobs with 17.9 turns each, of 6,945 prompt and 30 output tokens in the
median, after a system prompt of 604 and an issue of 1,498 tokens; no job goes beyond 16,384 tokens,
and a tool takes a second (``matrix-100job`` of the survey that `agentrt.lab.bench.external` names).
The spreads are ours. So is the mean of the outputs, which nobody published: it is the one that
gives that survey's time where nothing waits, on its H200 with one job a second. Jobs beyond the
limit are drawn again, so the means below are a little above those that come out.
"""

from __future__ import annotations

from random import Random

from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.sizes import ProgramBuilder, Sizes

JOBS, LONGEST = 100, 16_384
_SYSTEM, _TOOL_S = 604, 1.0
_TURNS = Sizes(mean=19.3, spread=0.2, low=5, high=40)
_ISSUE = Sizes(mean=1498, spread=0.5, low=200, high=6000)
_OUTPUT = Sizes(mean=85, spread=1.55, high=2000)
_RESULT = Sizes(mean=580, spread=1.0, low=5, high=6000)


def swe_smith(per_s: float, seed: int) -> list[ProgramShape]:
    """`JOBS` of them, which arrive as a Poisson process of ``per_s`` jobs a second."""
    jobs = [_job(Random(f"swe-smith/{seed}/{i}"), f"job-{i}") for i in range(JOBS)]
    return poisson(jobs, per_s, seed)


def _job(rng: Random, name: str) -> ProgramShape:
    """One that fits: a longer one is drawn again."""
    while True:
        builder = ProgramBuilder(rng, system_tokens=_SYSTEM, shared=0.0)
        last = builder.call("turn", _OUTPUT, _ISSUE)
        for _ in range(_TURNS.draw(rng) - 1):
            last = builder.call(
                "turn", _OUTPUT, _RESULT, after=(last,), extends=last, gap_s=_TOOL_S, tool="bash"
            )
        end = builder.calls[last]
        if end.prompt_tokens + end.output_tokens <= LONGEST:
            return builder.build(name, "swe_smith")
