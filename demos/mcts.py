"""Tree search in the manner of LATS, on the Game of 24: make 24 from four numbers.

    agentrt run demos/mcts.py --input "4 6 8 2"

Each iteration selects a state (UCT), expands it by parallel calls that choose among legal moves,
values the new states in parallel, and backs the values up. An exact checker has the last word.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations
from typing import Any

from agentrt import Context, node, program

WIDTH, HAND, ITERATIONS = 3, 4, 10
PUZZLES = ["1 3 8 8", "4 6 8 2", "2 2 6 9", "1 4 5 6", "3 5 6 8", "1 2 3 4", "2 3 4 6", "3 4 6 8"]
VALUES = {"dead": 0.0, "impossible": 0.1, "likely": 0.5, "sure": 0.9, "solved": 1.0}
Numbers = tuple[Fraction, ...]
GOAL: Numbers = (Fraction(24),)


def legal_moves(numbers: Numbers) -> dict[str, Numbers]:
    """What can be done with two of the numbers, and which numbers that leaves."""
    moves = {}
    for a, b, *rest in permutations(numbers) if len(numbers) > 1 else ():
        results = {"+": a + b, "*": a * b, "-": a - b} if a >= b else {}
        results |= {"/": a / b} if b else {}
        for sign, value in results.items():
            moves[f"{a} {sign} {b} = {value}"] = tuple(sorted([*rest, value]))
    return moves


def last_move(numbers: Numbers) -> str | None:
    """A move that makes 24 of the last two numbers, if there is one."""
    return next((move for move, left in legal_moves(numbers).items() if left == GOAL), None)


@dataclass(eq=False)
class State:
    """The numbers that are left, the steps that led to them, and what search found out."""

    numbers: Numbers
    steps: tuple[str, ...] = ()
    parent: State | None = None
    verdict: str = ""
    children: list[State] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    def __post_init__(self) -> None:
        self.untried = legal_moves(self.numbers) if len(self.numbers) > 2 else {}

    def open_children(self) -> list[State]:
        return [child for child in self.children if child.untried or child.open_children()]

    def uct(self) -> float:
        parent = self.parent.visits if self.parent else self.visits
        return self.total / self.visits + 0.7 * math.sqrt(math.log(parent) / self.visits)

    def back_up(self, value: float) -> None:
        self.visits, self.total = self.visits + 1, self.total + value
        if self.parent:
            self.parent.back_up(value)


def select(state: State) -> State | None:
    """The state to expand: down by UCT, but a state seen often gets more children first."""
    while (children := state.open_children()) and len(state.children) >= math.sqrt(state.visits):
        state = max(children, key=State.uct)
    return state if state.untried else None


def one_of(name: str, options: Iterable[str], **before: Any) -> dict[str, Any]:
    fields = {**before, name: {"enum": list(options)}}
    return {"type": "object", "properties": fields, "required": list(fields)}


@node
async def choose(ctx: Context, state: State, hand: list[str]) -> State:
    numbers = " ".join(map(str, state.numbers))
    ask = f"The numbers are {numbers}. Which move helps to make 24?\n" + "\n".join(hand)
    reply = await ctx.llm(ask, schema=one_of("move", hand), temperature=0.8, max_tokens=64)
    move = reply.parsed["move"] if reply.parsed else hand[0]
    return State(state.untried[move], (*state.steps, move), state)


@node
async def evaluate(ctx: Context, state: State) -> None:
    if len(state.numbers) == 2:
        last = await ctx.tool(last_move, state.numbers)
        state.steps, state.verdict = (
            (*state.steps, *filter(None, [last])),
            "solved" if last else "dead",
        )
        return
    ask = f"Can {' and '.join(map(str, state.numbers))} make 24 by + - * / ? Say why, then judge."
    schema = one_of(
        "verdict", ("sure", "likely", "impossible"), why={"type": "string", "maxLength": 60}
    )
    reply = await ctx.llm(ask, schema=schema, temperature=0.8, max_tokens=64)
    state.verdict = reply.parsed["verdict"] if reply.parsed else "likely"


async def expand(ctx: Context, state: State) -> list[State]:
    """New children. Each call chooses from a hand of its own, so that they differ."""
    moves = sorted(state.untried, key=lambda move: "/" in move)[: WIDTH * HAND]
    hands = [moves[i::WIDTH] for i in range(min(WIDTH, len(moves)))]
    children = await asyncio.gather(*(choose(ctx, state, hand) for hand in hands))
    await asyncio.gather(*(evaluate(ctx, child) for child in children))
    for child in children:
        del state.untried[child.steps[len(state.steps)]]
        child.back_up(VALUES[child.verdict])
    state.children += children
    return children


@program
async def mcts(ctx: Context, puzzle: str | None = None) -> dict[str, Any]:
    text = str(puzzle or PUZZLES[sum(ctx.program_id.encode()) % len(PUZZLES)])
    numbers = tuple(Fraction(number) for number in re.findall(r"\d+", text))
    if len(numbers) != 4:
        raise ValueError(f"the Game of 24 takes four numbers, got {text!r}")
    root, trace, found = State(numbers), list[dict[str, Any]](), None
    while len(trace) < ITERATIONS and not found and (state := select(root)):
        children = await expand(ctx, state)
        found = next((child for child in children if child.verdict == "solved"), None)
        tried = {"; ".join(child.steps[len(state.steps) :]): child.verdict for child in children}
        trace.append({"after": list(state.steps), "tried": tried})
    answer = list(found.steps) if found else None
    return {
        "numbers": list(map(int, numbers)),
        "found": bool(found),
        "answer": answer,
        "trace": trace,
    }
