"""Monte Carlo tree search after LATS on HotpotQA: large programs with wide iterations.

Published (Agentix, §6.1, Fig. 11): 159.7 calls per program; 467.2 prompt and 72.6 output tokens per
call. We take the 467 prompt tokens as the whole prompt of a call: instructions, question, and the
path through the tree to its node.

An iteration selects a node of the tree, expands it with parallel calls, evaluates each child with a
call of its own (after the child's tool), and backs the values up. Selection and backup need no
model and take no time here. They are the points at which parallel branches join. Between two
iterations there is a reflection on the failure. The search ends with the answer, or at a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from statistics import NormalDist

from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.workloads.sizes import Gaps, ProgramBuilder, Sizes

CALLS_MEAN = 159.7
OUTPUT_MEAN = 72.6

WIDTH = 5
"""Children per expansion (LATS, arXiv 2310.04406: n = 5)."""
LIMIT = 30
"""Maximum number of iterations (our assumption)."""
DEPTH = 7
"""Maximum depth of the tree (LATS's limit on HotpotQA)."""
_HARDNESS = 1.0
"""Spread of the hardness of questions: the standard deviation of the logarithm of the probability
to solve a question in an iteration. With 0, all questions are equally hard.
"""
_DEEPER = 0.2
"""Probability that the next node is a child of the last node, and not any node of the tree."""

# I iterations make 2 WIDTH I calls and I - 1 reflections.
_ITERATIONS_MEAN = (CALLS_MEAN + 1) / (2 * WIDTH + 1)
_THOUGHT_MEAN, _REFLECTION_MEAN = 85.0, 120.0
THOUGHT = Sizes(mean=_THOUGHT_MEAN, spread=0.5, high=1024)
REFLECTION = Sizes(mean=_REFLECTION_MEAN, spread=0.4, high=1024)
VALUE = Sizes(
    mean=(OUTPUT_MEAN * CALLS_MEAN - _REFLECTION_MEAN * (_ITERATIONS_MEAN - 1))
    / (WIDTH * _ITERATIONS_MEAN)
    - _THOUGHT_MEAN,
    spread=0.4,
    high=512,
)
"""The number of output tokens of an evaluation, chosen such that the mean over all calls is the
published mean.
"""
SYSTEM_TOKENS = 110
QUESTION = Sizes(mean=24, spread=0.3, low=5, high=100)
ASK = 20
"""Tokens of the instruction to give a value or a reflection."""
OBSERVATION = Sizes(mean=49.0, spread=0.7, high=1024)
"""The tokens of a tool's result. The mean is calibrated on 20,000 programs for a mean prompt of
467.2 tokens.
"""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A node of the tree: the call that made the node (None for the root), and the result of the
    node's tool.
    """

    call: int | None
    depth: int
    observation: int


def lats(rng: Random, program_id: str, gaps: Gaps) -> ProgramShape:
    """Make a search: iterations of parallel expansions and evaluations, joined by reflections."""
    iterations = _iterations(rng)
    builder = ProgramBuilder(rng, system_tokens=SYSTEM_TOKENS)
    tree = [_Leaf(None, 0, builder.draw(QUESTION))]
    node, join = tree[0], None
    for iteration in range(iterations):
        children, values = _iterate(builder, rng, gaps, node, join)
        tree += children
        if iteration + 1 < iterations:
            best = rng.choice(children)
            join = builder.call(
                "reflect", REFLECTION, best.observation + ASK, after=values, extends=best.call
            )
            node = _select(rng, tree, best)
    return builder.build(program_id, "lats")


def _iterate(
    builder: ProgramBuilder, rng: Random, gaps: Gaps, node: _Leaf, join: int | None
) -> tuple[list[_Leaf], list[int]]:
    """Expand ``node`` after the call ``join``, if there is one. Return the children, and the calls
    that evaluate them.
    """
    after = () if join is None else (join,)
    calls = [
        builder.call("expand", THOUGHT, node.observation, after=after, extends=node.call)
        for _ in range(WIDTH)
    ]
    children = [_Leaf(call, node.depth + 1, builder.draw(OBSERVATION)) for call in calls]
    values = [
        builder.call(
            "evaluate",
            VALUE,
            child.observation + ASK,
            after=(call,),
            extends=call,
            gap_s=gaps.tool(rng),
        )
        for call, child in zip(calls, children, strict=True)
    ]
    return children, values


def _select(rng: Random, tree: list[_Leaf], best: _Leaf) -> _Leaf:
    if best.depth < DEPTH and rng.random() < _DEEPER:
        return best
    open_leaves = [leaf for leaf in tree if leaf.depth < DEPTH]
    return min(rng.choice(open_leaves), rng.choice(open_leaves), key=lambda leaf: leaf.depth)


def _iterations(rng: Random) -> int:
    """Draw the number of iterations until the question is solved, or the limit."""
    chance = _chance(_base_chance(), rng.gauss(0.0, 1.0))
    solved = 1 + math.floor(math.log(1.0 - rng.random()) / math.log1p(-chance))
    return min(solved, LIMIT)


def _chance(base: float, hardness: float) -> float:
    return min(base * math.exp(-_HARDNESS * hardness), 0.95)


@lru_cache(maxsize=1)
def _base_chance() -> float:
    """Return the probability to solve the median question in an iteration, chosen such that
    programs have the published mean number of calls.
    """
    hardness = [NormalDist().inv_cdf((i + 0.5) / 400) for i in range(400)]
    low, high = 1e-4, 0.9
    for _ in range(50):
        base = (low + high) / 2
        chances = [_chance(base, z) for z in hardness]
        mean = sum((1 - (1 - p) ** LIMIT) / p for p in chances) / len(chances)
        low, high = (low, base) if mean < _ITERATIONS_MEAN else (base, high)
    return low
