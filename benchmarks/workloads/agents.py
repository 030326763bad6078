"""Agents that hold much memory for long: one that codes, one with sub-agents; and named tools.

What is published of a workload is named beside its sizes; the rest is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from agentrt.lab.workloads.arrivals import poisson
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from benchmarks.workloads.sizes import Gaps, ProgramBuilder, Sizes


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's time is lognormal: its median, its spread, and how often it is used."""

    median: float
    spread: float
    weight: int


TOOLS = {"search": Tool(1.0, 0.5, 6), "shell": Tool(3.0, 0.8, 3), "build": Tool(20.0, 0.7, 1)}
"""Ours; medians are multiples of the commonest's."""


def with_tools(programs: Sequence[ProgramShape], tool_s: float, seed: int) -> list[ProgramShape]:
    """The programs with a tool before each call that a tool's gap or none was drawn for.

    The commonest tool takes ``tool_s`` seconds in the median; at 0 all answer at once. A tool that
    has a name already takes ``tool_s`` times as long as it did.
    """
    rng = Random(f"tools/{seed}")
    return [
        replace(one, calls=tuple(_tool(call, tool_s, rng) for call in one.calls))
        for one in programs
    ]


def _tool(call: CallShape, tool_s: float, rng: Random) -> CallShape:
    name = rng.choices(list(TOOLS), [tool.weight for tool in TOOLS.values()])[0]
    spread = rng.lognormvariate(0.0, TOOLS[name].spread)
    if not call.gap_s or call.human:
        return call
    if call.tool:
        return replace(call, gap_s=tool_s * call.gap_s)
    return replace(call, gap_s=tool_s * TOOLS[name].median * spread, tool=name)


# -- workloads -----------------------------------------------------------------------------

CODING_SYSTEM = 1700
CODING_CALLS = Sizes(mean=20, spread=0.8, low=4, high=60)
CODING_FIRST = Sizes(mean=4500, spread=0.6, low=200, high=9000)
CODING_ADDED = Sizes(mean=95, spread=1.2, high=2500)
CODING_OUTPUT = Sizes(mean=34, spread=0.9, high=400)
"""After 338 recorded coding agents at a tenth of their tokens: 17,000 tokens of tools and system
prompt, 44 calls in the median (fewer here), prompts of 100,000 and outputs of 218."""


def coding(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """A coding agent: a large context that grows by a little with each tool's result."""
    builder = ProgramBuilder(rng, system_tokens=CODING_SYSTEM)
    last = builder.call("code", CODING_OUTPUT, CODING_FIRST)
    for _ in range(CODING_CALLS.draw(rng) - 1):
        last = builder.call(
            "code", CODING_OUTPUT, CODING_ADDED, after=(last,), extends=last, gap_s=gaps.tool(rng)
        )
    return builder.build(program_id, "coding")


DEEP_SYSTEM = 1500
DEEP_ROUNDS = Sizes(mean=4, spread=0.5, low=1, high=10)
DEEP_FAN = (1, 4)
DEEP_STEPS = Sizes(mean=6, spread=0.6, low=2, high=20)
DEEP_PLAN = Sizes(mean=150, spread=0.5, high=800)
DEEP_THOUGHT = Sizes(mean=60, spread=0.6, high=500)
DEEP_RESULT = Sizes(mean=350, spread=0.9, high=2500)
DEEP_REPORT = Sizes(mean=200, spread=0.5, high=1000)
DEEP_TASK = Sizes(mean=200, spread=0.6, high=1000)


def deep_agent(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """A lead agent that plans, sends sub-agents out, and reads their reports.

    Sub-agents are chains with a context of their own; they share the lead's system prompt only.
    """
    builder = ProgramBuilder(rng, system_tokens=DEEP_SYSTEM)
    lead = builder.call("plan", DEEP_PLAN, DEEP_TASK)
    for _ in range(DEEP_ROUNDS.draw(rng)):
        reports = [_sub_agent(builder, rng, gaps, lead) for _ in range(rng.randint(*DEEP_FAN))]
        lead = builder.call("lead", DEEP_PLAN, 60, after=reports, extends=lead, quotes=reports)
    return builder.build(program_id, "deep")


def _sub_agent(builder: ProgramBuilder, rng: Random, gaps: Gaps, lead: int) -> int:
    last = builder.call("sub", DEEP_THOUGHT, DEEP_TASK, after=(lead,))
    for _ in range(DEEP_STEPS.draw(rng)):
        last = builder.call(
            "sub", DEEP_THOUGHT, DEEP_RESULT, after=(last,), extends=last, gap_s=gaps.tool(rng)
        )
    return builder.call("report", DEEP_REPORT, 40, after=(last,), extends=last)


# -- SWE-smith's sizes ----------------------------------------------------------------------

JOBS, LONGEST = 100, 16_384
_SYSTEM, _TOOL_S = 604, 1.0
_TURNS = Sizes(mean=19.3, spread=0.2, low=5, high=40)
_ISSUE = Sizes(mean=1498, spread=0.5, low=200, high=6000)
_OUTPUT = Sizes(mean=85, spread=1.55, high=2000)
_RESULT = Sizes(mean=580, spread=1.0, low=5, high=6000)


def swe_smith(per_s: float, seed: int) -> list[ProgramShape]:
    """Coding agents whose sizes are those that others published of SWE-smith's trajectories: `JOBS`
    of them, which arrive as a Poisson process of ``per_s`` jobs a second.

    Not the trajectories: 100 jobs with 17.9 turns each, of 6,945 prompt and 30 output tokens in the
    median, after a system prompt of 604 and an issue of 1,498 tokens; no job goes beyond 16,384
    tokens, and a tool takes a second (``matrix-100job`` of the survey that
    `benchmarks.external` names). The spreads are ours. So is the mean of the outputs, which
    nobody published: it is the one that gives that survey's time where nothing waits, on its H200
    with one job a second. Jobs beyond the limit are drawn again, so the means here are a little
    above those that come out.
    """
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
