"""Generators of programs by the name of the workload: the workloads of the Agentix paper, and
further types of programs.

`chat` follows ShareGPT, `react` BFCL v3, and `lats`, in its own module, LATS on HotpotQA; their
means are the means in Agentix, §6.1, Fig. 11. The sizes, spreads and fan-outs of the other types in
this module are our assumptions, chosen such that the work of the types differs by up to two orders
of magnitude (means of about 200 to 10,000 output tokens), and that their joins differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from random import Random

from agentrt.errors import ConfigError
from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.workloads.agents import coding, deep_agent
from benchmarks.workloads.lats import lats
from benchmarks.workloads.sizes import Gaps, ProgramBuilder, Sizes

_TURNS = Sizes(mean=6.66, spread=1.1, high=80)
_ANSWER = Sizes(mean=277, spread=0.8, high=2048)
_QUESTION = Sizes(mean=256, spread=1.0, high=2048)


def chat(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a chat: usually a few turns, sometimes many; short messages and long answers.

    Published: 6.66 calls per program, at most 80, long-tailed; 277 output and 256 prompt tokens per
    call. We take the 256 prompt tokens as the tokens that the human adds in a turn. No context
    limit ends a chat: one prompt in a hundred is longer than about 30,000 tokens.
    """
    turns = _TURNS.draw(rng)
    builder = ProgramBuilder(rng)
    last: int | None = None
    for _ in range(turns):
        first = last is None
        last = builder.call(
            "turn",
            _ANSWER,
            _QUESTION,
            after=() if last is None else (last,),
            extends=last,
            gap_s=0.0 if first else gaps.human(rng),
            human=True,
        )
    return builder.build(program_id, "chat")


_ASSISTANTS, _ASSISTANT_SYSTEM = 4, 2000
"""Our assumptions: the number of kinds of chat, and the tokens of their system prompts."""


def assistant(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a chat with the long system prompt of one of several assistants."""
    kind = f"assistant-{rng.randrange(_ASSISTANTS)}"
    shape = chat(rng, program_id, gaps)
    calls = tuple(
        replace(call, prompt_tokens=call.prompt_tokens + _ASSISTANT_SYSTEM) for call in shape.calls
    )
    return replace(shape, type=kind, calls=calls, system_tokens=_ASSISTANT_SYSTEM)


_STEPS = Sizes(mean=10.75, spread=0.65, high=70)
_THOUGHT = Sizes(mean=34.14, spread=0.6, high=512)
_PROMPT_MEAN = 735.06
_SYSTEM_TOKENS = 320
"""Our assumption: tokens of the instructions and of the signatures of the tools."""
_TASK = Sizes(mean=45, spread=0.5, high=400)

_BEFORE = (_STEPS.square() / _STEPS.mean - 1) / 2
"""The mean number of steps before a call, over all calls: E[n (n - 1) / 2] / E[n]."""
_RESULT = Sizes(
    mean=(_PROMPT_MEAN - _SYSTEM_TOKENS - _TASK.mean) / _BEFORE - _THOUGHT.mean,
    spread=0.8,
    high=1024,
)
"""The tokens of a tool's result, chosen such that prompts have the published mean."""


def react(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a ReAct agent: a chain of calls with a tool between each two.

    Published: 10.75 calls per program, at most 70, less long-tailed than chats; 735.06 prompt and
    34.14 output tokens per call. We take the 735 prompt tokens as the whole prompt (system prompt,
    signatures of tools, task and earlier steps), because the paper explains the number by the
    system prompt and the signatures.
    """
    steps = _STEPS.draw(rng)
    builder = ProgramBuilder(rng, system_tokens=_SYSTEM_TOKENS)
    last = builder.call("think", _THOUGHT, _TASK)
    for _ in range(steps - 1):
        last = builder.call(
            "think", _THOUGHT, _RESULT, after=(last,), extends=last, gap_s=gaps.tool(rng)
        )
    return builder.build(program_id, "react")


def rag(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a RAG program: a short rewrite, a retrieval, and an answer to a long prompt."""
    builder = ProgramBuilder(rng, system_tokens=150)
    query = builder.call("rewrite", Sizes(25, 0.4, high=200), Sizes(60, 0.7, high=1000))
    passages = Sizes(1800, 0.4, low=200, high=6000)
    builder.call(
        "answer",
        Sizes(170, 0.6, high=1500),
        passages,
        after=(query,),
        quotes=(query,),
        gap_s=0.3 * gaps.tool(rng),
    )
    return builder.build(program_id, "rag")


def chain(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a chain of three to six steps, each with a prompt that quotes the step before."""
    builder = ProgramBuilder(rng, system_tokens=100)
    draft = Sizes(140, 0.6, high=1500)
    last = builder.call("step", draft, Sizes(400, 0.8, high=4000))
    for _ in range(rng.randint(2, 5)):
        last = builder.call("step", draft, 80, after=(last,), quotes=(last,))
    return builder.build(program_id, "chain")


def plan_execute(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a plan, one to five layers of parallel steps with tools, and a report on all steps."""
    builder = ProgramBuilder(rng, system_tokens=400)
    plan = builder.call("plan", Sizes(220, 0.5, high=1500), Sizes(150, 0.7, high=2000))
    layer, steps = [plan], []
    for _ in range(rng.randint(1, 5)):
        layer = [
            builder.call(
                "execute",
                Sizes(130, 0.7, high=1500),
                Sizes(120, 0.8, high=2000),
                after=layer,
                extends=plan,
                gap_s=gaps.tool(rng),
            )
            for _ in range(rng.randint(1, 4))
        ]
        steps += layer
    builder.call("report", Sizes(350, 0.5, high=2000), 60, after=layer, extends=plan, quotes=steps)
    return builder.build(program_id, "plan_execute")


def best_of_n(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make 4, 8 or 16 parallel samples of one prompt, and a judge that reads all of them."""
    builder = ProgramBuilder(rng, system_tokens=120, shared=0.7)
    task = builder.draw(Sizes(300, 0.8, high=4000))
    samples = [
        builder.call("sample", Sizes(280, 0.6, high=2500), task)
        for _ in range(rng.choice((4, 8, 16)))
    ]
    builder.call("judge", Sizes(60, 0.5, high=400), 50, after=samples, quotes=samples)
    return builder.build(program_id, "best_of_n")


def debate(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a debate of three to five agents over two to four rounds, and a verdict."""
    builder = ProgramBuilder(rng, system_tokens=150)
    agents = range(rng.randint(3, 5))
    topic = builder.draw(Sizes(120, 0.6, high=1500))
    speech = Sizes(240, 0.5, high=1500)
    said = [builder.call("argue", speech, topic) for _ in agents]
    for _ in range(rng.randint(1, 3)):
        said = [
            builder.call(
                "rebut",
                speech,
                40,
                after=said,
                extends=said[own],
                quotes=[turn for turn in said if turn != said[own]],
            )
            for own in agents
        ]
    builder.call("verdict", Sizes(150, 0.5, high=1000), topic, after=said, quotes=said)
    return builder.build(program_id, "debate")


def map_reduce(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a program with a call for each of 4 to 96 chunks of a document. Further calls combine up
    to eight answers each, until one answer is left.
    """
    builder = ProgramBuilder(rng, system_tokens=80)
    chunks = Sizes(28, 0.7, low=4, high=96).draw(rng)
    level = [
        builder.call("map", Sizes(180, 0.5, high=1000), Sizes(1000, 0.15, low=200, high=1500))
        for _ in range(chunks)
    ]
    while len(level) > 1:
        groups = [level[i : i + 8] for i in range(0, len(level), 8)]
        level = [
            builder.call("reduce", Sizes(300, 0.4, high=1500), 60, after=group, quotes=group)
            for group in groups
        ]
    return builder.build(program_id, "map_reduce")


def tree_search(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a beam search with a beam of two to four over three to six levels, with parallel
    proposals and scores.
    """
    builder = ProgramBuilder(rng, system_tokens=250)
    beam, fan = rng.randint(2, 4), rng.randint(3, 6)
    task = builder.draw(Sizes(100, 0.5, high=1000))
    kept: list[int | None] = [None]
    scores: list[int] = []
    for _ in range(rng.randint(3, 6)):
        thoughts = [
            builder.call(
                "propose",
                Sizes(150, 0.5, high=1000),
                task if parent is None else 30,
                after=scores,
                extends=parent,
            )
            for parent in kept
            for _ in range(fan)
        ]
        scores = [
            builder.call("score", Sizes(50, 0.5, high=300), 40, after=(thought,), extends=thought)
            for thought in thoughts
        ]
        kept = list(rng.sample(thoughts, min(beam, len(thoughts))))
    best = kept[0]
    builder.call("answer", Sizes(400, 0.5, high=2000), 40, after=scores, extends=best)
    return builder.build(program_id, "tree_search")


Generator = Callable[[Random, str, Gaps], ProgramShape]
"""A function that makes the program with the given id. All randomness comes from its first
argument.
"""

_AS_IN_PAPER = Gaps()
WORKLOADS: Mapping[str, tuple[Generator, ...]] = {
    "chat": (chat,),
    "react": (react,),
    "lats": (lats,),
    "mixed": (chat, react, lats),
    "assistant": (assistant,),
    "coding": (coding,),
    "deep": (deep_agent,),
    "graphs8": (
        rag,
        chain,
        react,
        plan_execute,
        best_of_n,
        debate,
        map_reduce,
        tree_search,
    ),
}


def generate(
    name: str,
    n: int,
    seed: int,
    *,
    gaps: Gaps = _AS_IN_PAPER,
    known: Mapping[str, tuple[Generator, ...]] = WORKLOADS,
) -> list[ProgramShape]:
    """Make ``n`` programs of one of the ``known`` workloads. All programs arrive at second 0.

    Program i of a seed does not depend on ``n``. A workload of several types consists of blocks
    that have each type once, in random order.

    Raises `ConfigError` for an unknown name.
    """
    makers = makers_of(name, known)
    return [_program(name, makers, seed, index, gaps) for index in range(n)]


def makers_of(
    name: str, known: Mapping[str, tuple[Generator, ...]] = WORKLOADS
) -> tuple[Generator, ...]:
    """Return the generators of a workload. Raises `ConfigError` for an unknown name."""
    if name not in known:
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"unknown workload {name!r}; {meant}available: {', '.join(known)}")
    return known[name]


def _program(
    name: str, makers: Sequence[Generator], seed: int, index: int, gaps: Gaps
) -> ProgramShape:
    block, place = divmod(index, len(makers))
    order = Random(f"{name}/{seed}/block {block}").sample(makers, len(makers))
    rng = Random(f"{name}/{seed}/program {index}")
    return order[place](rng, f"{name}-{seed}-{index:05d}", gaps)
