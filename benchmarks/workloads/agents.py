"""Generators of agents that hold much memory for a long time (a coding agent, and an agent with
sub-agents), and of the times of tools.

Sizes that come from a publication name it; all others are our assumptions.
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
    """A tool with a lognormal time: its median, its spread, and its relative frequency."""

    median: float
    spread: float
    weight: int


TOOLS = {"search": Tool(1.0, 0.5, 6), "shell": Tool(3.0, 0.8, 3), "build": Tool(20.0, 0.7, 1)}
"""Our assumptions about tools. The medians are multiples of the median of the commonest tool."""


def with_tools(programs: Sequence[ProgramShape], tool_s: float, seed: int) -> list[ProgramShape]:
    """Return the programs with a named tool in each gap that is not the pause of a human.

    The commonest tool has a median time of ``tool_s`` seconds; with 0, all tools answer at once.
    The time of a tool that already has a name is multiplied by ``tool_s``.
    """
    rng = Random(f"tools/{seed}")
    return [
        replace(program, calls=tuple(_tool(call, tool_s, rng) for call in program.calls))
        for program in programs
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
"""The sizes follow 338 recorded coding agents, with a tenth of their tokens. The recorded agents
had 17,000 tokens of tools and system prompt, a median of 44 calls (fewer here), prompts of 100,000
tokens and outputs of 218 tokens.
"""


def coding(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a coding agent: a large context that grows a little with each result of a tool."""
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
    """Make a lead agent that plans, starts sub-agents, and reads their reports.

    Sub-agents are chains with contexts of their own. They share only the system prompt of the lead
    agent.
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
    """Make `JOBS` coding agents that arrive as a Poisson process of ``per_s`` jobs per second.
    Their sizes are the published sizes of SWE-smith's trajectories.

    The trajectories themselves are not used. The published sizes are: 100 jobs with 17.9 turns on
    average, a median of 6,945 prompt and 30 output tokens, a system prompt of 604 and an issue of
    1,498 tokens, at most 16,384 tokens in a job, and one second for a tool (``matrix-100job`` of
    the survey that `benchmarks.external` names). The spreads are our assumptions. The mean of the
    outputs was not published. It is fitted to the seconds that a job took in the survey where no
    call waited: on an H200 with one job per second. Jobs beyond the limit are drawn again, so the
    parameters here are a little above the resulting means.
    """
    jobs = [_job(Random(f"swe-smith/{seed}/{i}"), f"job-{i}") for i in range(JOBS)]
    return poisson(jobs, per_s, seed)


def _job(rng: Random, name: str) -> ProgramShape:
    """Draw a job. A job that is too long is drawn again."""
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
