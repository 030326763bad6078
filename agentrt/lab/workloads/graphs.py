"""Eight types of agent programs, unlike in shape and size: the workload ``graphs8``.

Sizes, spreads and fan-outs are ours, chosen so that the types' work differs by up to two
orders of magnitude (means of about 200 to 10,000 output tokens) and each has its own joins:

========================  =========================================================
`rag`                     rewrite a question, retrieve, answer from what was found
`chain`                   a fixed pipeline, each step reading the one before it
`react`                   think, tool, think again (that of `agentrt.lab.workloads.react`)
`plan_execute`            a plan, steps in parallel layers, a report
`best_of_n`               parallel samples of one prompt, one judge
`debate`                  agents in rounds; each reads all of the round before
`map_reduce`              a map per chunk, then a tree of reductions
`tree_search`             a beam: propose, score, keep the best, level by level
========================  =========================================================
"""

from __future__ import annotations

from random import Random

from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.sizes import Gaps, Sizes
from agentrt.lab.workloads.sketch import Sketch


def rag(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """A short rewrite, a retrieval, and an answer over a long prompt."""
    sketch = Sketch(rng, system_tokens=150)
    query = sketch.call("rewrite", Sizes(25, 0.4, high=200), Sizes(60, 0.7, high=1000))
    found = Sizes(1800, 0.4, low=200, high=6000)
    sketch.call(
        "answer",
        Sizes(170, 0.6, high=1500),
        found,
        after=(query,),
        quotes=(query,),
        gap_s=0.3 * gaps.tool(rng),
    )
    return sketch.shape(program_id, "rag")


def chain(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Three to six steps, each a prompt of its own that quotes the step before."""
    sketch = Sketch(rng, system_tokens=100)
    draft = Sizes(140, 0.6, high=1500)
    last = sketch.call("step", draft, Sizes(400, 0.8, high=4000))
    for _ in range(rng.randint(2, 5)):
        last = sketch.call("step", draft, 80, after=(last,), quotes=(last,))
    return sketch.shape(program_id, "chain")


def plan_execute(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """A plan, one to five layers of parallel steps with tools, and a report on all."""
    sketch = Sketch(rng, system_tokens=400)
    plan = sketch.call("plan", Sizes(220, 0.5, high=1500), Sizes(150, 0.7, high=2000))
    layer, steps = [plan], []
    for _ in range(rng.randint(1, 5)):
        layer = [
            sketch.call(
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
    sketch.call("report", Sizes(350, 0.5, high=2000), 60, after=layer, extends=plan, quotes=steps)
    return sketch.shape(program_id, "plan_execute")


def best_of_n(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """4, 8 or 16 samples of one prompt in parallel, and a judge who reads them all."""
    sketch = Sketch(rng, system_tokens=120, shared=0.7)
    task = sketch.draw(Sizes(300, 0.8, high=4000))
    samples = [
        sketch.call("sample", Sizes(280, 0.6, high=2500), task)
        for _ in range(rng.choice((4, 8, 16)))
    ]
    sketch.call("judge", Sizes(60, 0.5, high=400), 50, after=samples, quotes=samples)
    return sketch.shape(program_id, "best_of_n")


def debate(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Three to five agents, two to four rounds, all against all; then a verdict."""
    sketch = Sketch(rng, system_tokens=150)
    agents = range(rng.randint(3, 5))
    topic = sketch.draw(Sizes(120, 0.6, high=1500))
    speech = Sizes(240, 0.5, high=1500)
    said = [sketch.call("argue", speech, topic) for _ in agents]
    for _ in range(rng.randint(1, 3)):
        said = [
            sketch.call(
                "rebut",
                speech,
                40,
                after=said,
                extends=said[own],
                quotes=[one for one in said if one != said[own]],
            )
            for own in agents
        ]
    sketch.call("verdict", Sizes(150, 0.5, high=1000), topic, after=said, quotes=said)
    return sketch.shape(program_id, "debate")


def map_reduce(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """A map over 4 to 96 chunks of a document, then reductions of up to eight at a time."""
    sketch = Sketch(rng, system_tokens=80)
    chunks = Sizes(28, 0.7, low=4, high=96).draw(rng)
    level = [
        sketch.call("map", Sizes(180, 0.5, high=1000), Sizes(1000, 0.15, low=200, high=1500))
        for _ in range(chunks)
    ]
    while len(level) > 1:
        groups = [level[i : i + 8] for i in range(0, len(level), 8)]
        level = [
            sketch.call("reduce", Sizes(300, 0.4, high=1500), 60, after=group, quotes=group)
            for group in groups
        ]
    return sketch.shape(program_id, "map_reduce")


def tree_search(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """A beam of two to four over three to six levels; proposals and scores in parallel."""
    sketch = Sketch(rng, system_tokens=250)
    beam, fan = rng.randint(2, 4), rng.randint(3, 6)
    task = sketch.draw(Sizes(100, 0.5, high=1000))
    kept: list[int | None] = [None]
    scores: list[int] = []
    for _ in range(rng.randint(3, 6)):
        thoughts = [
            sketch.call(
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
            sketch.call("score", Sizes(50, 0.5, high=300), 40, after=(one,), extends=one)
            for one in thoughts
        ]
        kept = list(rng.sample(thoughts, min(beam, len(thoughts))))
    best = kept[0]
    sketch.call("answer", Sizes(400, 0.5, high=2000), 40, after=scores, extends=best)
    return sketch.shape(program_id, "tree_search")
