"""Twenty mixes of programs, like those of a user who tries agentrt for the first time.

There are few programs, which arrive at once or within seconds, and the engine has few batch slots.
In ten mixes the programs differ; in the other ten mixes the programs are alike. All sizes are our
assumptions, except the sizes of the generators of `benchmarks.workloads`. Counts and sizes were
chosen such that calls wait under stock vLLM, and that an order that knows all sizes (``--policy
srpt``) gains if programs differ. The gain of agentrt's defaults did not influence the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random
from typing import Literal

from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import (
    CallShape,
    ProgramShape,
)
from benchmarks.workloads.agents import with_tools
from benchmarks.workloads.generate import (
    WORKLOADS,
    Generator,
    best_of_n,
    chain,
    debate,
    map_reduce,
    plan_execute,
    rag,
    tree_search,
)
from benchmarks.workloads.sizes import Gaps, ProgramBuilder, Sizes
from benchmarks.workloads.source import Cut, rescaled

LONGEST = 32_768
"""The model's maximum context in tokens."""
_CUT = Cut(tokens=24_576)

Limit = Literal["exact", "own", "unset"] | int
"""How clients set max_tokens. ``exact``: outputs fill the limit, as in ``agentrt demo``. ``own``: a
power of two for each node of a program, which is large enough for all outputs of the node.
``unset``: vLLM's default, all that is left of the context. A number: that limit for every call.
"""
Order = Literal["as listed", "in turns", "shuffled"]


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` programs of a kind. ``scale`` multiplies their tokens.

    ``type`` is the name of the graph, if it differs from the name of the kind.
    """

    kind: str
    count: int
    scale: float = 1.0
    type: str = ""


@dataclass(frozen=True, slots=True)
class Mix:
    """Programs, and an engine with ``slots`` batch slots.

    The programs arrive at random times within ``within_s`` seconds; with 0, all programs arrive at
    once. ``tool_s`` is the median time of the commonest tool in seconds. Humans answer at once.
    """

    groups: tuple[Group, ...]
    alike: bool = False
    order: Order = "as listed"
    slots: int = 4
    limit: Limit = "own"
    within_s: float = 0.0
    tool_s: float = 0.1

    def programs(self, name: str, seed: int) -> list[ProgramShape]:
        """Return the programs in the order of their arrival. The programs depend only on the mix's
        name and the seed.
        """
        groups = [
            [_program(group, f"{name}/{seed}/{place}/{number}") for number in range(group.count)]
            for place, group in enumerate(self.groups)
        ]
        rng = Random(f"{name}/{seed}/order")
        programs = with_tools(_in_order(groups, self.order, rng), self.tool_s, seed)
        programs = _with_limits([_CUT.of(program) for program in programs], self.limit)
        times = sorted(rng.uniform(0.0, self.within_s) for _ in programs)
        return [program.arriving(at_s) for program, at_s in zip(programs, times, strict=True)]


def _program(group: Group, seed: str) -> ProgramShape:
    made = KINDS[group.kind](Random(seed), seed, Gaps())
    if group.scale != 1.0:
        made = rescaled(made, Scales(group.scale, group.scale))
    return replace(made, type=group.type or made.type)


def _in_order(
    groups: Sequence[Sequence[ProgramShape]], order: Order, rng: Random
) -> list[ProgramShape]:
    listed = [program for group in groups for program in group]
    if order == "shuffled":
        return rng.sample(listed, len(listed))
    if order == "in turns":
        rounds = zip_longest(*groups)
        return [program for each in rounds for program in each if program is not None]
    return listed


def _with_limits(programs: Sequence[ProgramShape], limit: Limit) -> list[ProgramShape]:
    """Return the programs with ``max_tokens`` as their clients would set it."""
    if limit == "exact":
        return list(programs)
    longest: dict[tuple[str, str], int] = {}
    for program in programs:
        for call in program.calls:
            node = program.type, call.node
            longest[node] = max(longest.get(node, 16), call.output_tokens)

    def limited(program: ProgramShape, call: CallShape) -> CallShape:
        if limit == "own":
            return replace(call, max_tokens=_power_of_two(longest[program.type, call.node]))
        if limit == "unset":
            return replace(call, max_tokens=LONGEST - max(1, call.prompt_tokens))
        return replace(call, max_tokens=int(limit))

    return [
        replace(program, calls=tuple(limited(program, call) for call in program.calls))
        for program in programs
    ]


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


# -- further kinds of programs -----------------------------------------------------------


def demo_report(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make the program ``report`` of ``agentrt demo``: a plan, eight sections at once, and a
    summary.
    """
    sections = range(1, 9)
    calls = (
        CallShape(32, 12, node="plan"),
        *(CallShape(40, 42, after=(0,), node="section") for _ in sections),
        CallShape(16, 8 * 40 + 8, after=tuple(sections), node="summary"),
    )
    return ProgramShape(program_id, "report", calls)


def demo_lookup(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make the program ``lookup`` of ``agentrt demo``: two rounds of a thought and a tool of 0.4 s,
    and an answer.
    """
    calls = (
        CallShape(24, 12, node="think"),
        CallShape(24, 24, after=(0,), gap_s=0.4, tool="search", node="think"),
        CallShape(16, 36, after=(1,), gap_s=0.4, tool="search", node="answer"),
    )
    return ProgramShape(program_id, "lookup", calls)


def _calls_once(type: str, prompt: Sizes) -> Generator:
    def make(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
        builder = ProgramBuilder(rng, system_tokens=50)
        builder.call("answer", Sizes(60, 0.6, high=600), prompt)
        return builder.build(program_id, type)

    return make


KINDS: Mapping[str, Callable[[Random, str, Gaps], ProgramShape]] = {
    **{name: WORKLOADS[name][0] for name in ("chat", "react", "lats", "coding", "deep")},
    "rag": rag,
    "chain": chain,
    "plan_execute": plan_execute,
    "best_of_n": best_of_n,
    "debate": debate,
    "map_reduce": map_reduce,
    "tree_search": tree_search,
    "report": demo_report,
    "lookup": demo_lookup,
    "question": _calls_once("question", Sizes(150, 0.7, high=1500)),
    "document": _calls_once("document", Sizes(9000, 0.4, low=2000, high=20_000)),
}

# -- the mixes -----------------------------------------------------------------------------

UNLIKE: Mapping[str, Mix] = {
    "demo": Mix((Group("report", 3), Group("lookup", 5)), slots=4, limit="exact", tool_s=1.0),
    "react-lats": Mix(
        (Group("react", 24), Group("lats", 4, 0.3)), order="shuffled", limit=4096, tool_s=0.05
    ),
    "coding-chat": Mix((Group("coding", 8), Group("chat", 16, 0.3)), limit="unset"),
    "map_reduce-chat": Mix((Group("map_reduce", 3, 0.5), Group("chat", 12, 0.3))),
    "rag-deep": Mix(
        (Group("rag", 24, 0.6), Group("deep", 6, 0.4)), order="in turns", limit=4096, tool_s=0.05
    ),
    "document-question": Mix(
        (Group("document", 10), Group("question", 20)), order="shuffled", limit=1024
    ),
    "large-first": Mix((Group("tree_search", 4, 0.5), Group("question", 32)), limit="unset"),
    "small-first": Mix((Group("chain", 16, 0.5), Group("debate", 8, 0.5))),
    "samples-plans": Mix(
        (Group("best_of_n", 6, 0.5), Group("plan_execute", 6, 0.5), Group("rag", 12)),
        order="in turns",
        limit=4096,
    ),
    "many-kinds": Mix(
        tuple(
            Group(kind, count, 0.5)
            for kind, count in {
                "rag": 6,
                "chain": 6,
                "react": 6,
                "plan_execute": 3,
                "best_of_n": 3,
                "debate": 2,
                "map_reduce": 2,
                "tree_search": 2,
            }.items()
        ),
        order="shuffled",
        slots=16,
        limit="unset",
        within_s=5.0,
    ),
}
ALIKE: Mapping[str, Mix] = {
    "react": Mix((Group("react", 24),), alike=True, limit="unset"),
    "chat": Mix((Group("chat", 20, 0.3),), alike=True, limit="unset"),
    "lats": Mix((Group("lats", 8, 0.2),), alike=True, limit=4096, tool_s=0.05),
    "coding": Mix((Group("coding", 20),), alike=True),
    "map_reduce": Mix((Group("map_reduce", 6, 0.4),), alike=True, slots=8),
    "best_of_n": Mix((Group("best_of_n", 12, 0.5),), alike=True, slots=8, limit="unset"),
    "debate": Mix((Group("debate", 10, 0.5),), alike=True, limit=2048),
    "plan_execute": Mix((Group("plan_execute", 16, 0.5),), alike=True, limit=4096),
    "deep": Mix((Group("deep", 8, 0.3),), alike=True, limit="unset", within_s=3.0, tool_s=0.05),
    "two-names": Mix(
        (Group("chain", 12, 0.5, "letters"), Group("chain", 12, 0.5, "minutes")),
        alike=True,
        order="in turns",
    ),
}
MIXES: Mapping[str, Mix] = {**UNLIKE, **ALIKE}
