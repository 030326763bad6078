"""Tree search in the manner of LATS, on the Game of 24: make 24 from four numbers.

    agentrt run demos/mcts.py --input "4 6 8 2"

Each iteration selects a state (UCT), expands it by parallel calls that choose among legal moves,
values the new states in parallel, and backs the values up. An exact checker has the last word.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from agentrt import Context, node, program
from game24 import PUZZLES, State, last_move, select

WIDTH, HAND, ITERATIONS = 3, 4, 10
VALUES = {"dead": 0.0, "impossible": 0.1, "likely": 0.5, "sure": 0.9, "solved": 1.0}


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
        state.steps += (last,) if last else ()
        state.verdict = "solved" if last else "dead"
        return
    ask = f"Can {' and '.join(map(str, state.numbers))} make 24 by + - * / ? Say why, then judge."
    schema = one_of(
        "verdict", ("sure", "likely", "impossible"), why={"type": "string", "maxLength": 60}
    )
    reply = await ctx.llm(ask, schema=schema, temperature=0.8, max_tokens=64)
    state.verdict = reply.parsed["verdict"] if reply.parsed else "likely"


async def expand(ctx: Context, state: State) -> list[State]:
    """Add children. Each call chooses from a hand of moves of its own, so the children differ."""
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
    origin = ctx.run_id.partition("-fork-")[0]  # a fork's puzzle is its origin's
    text = str(puzzle or PUZZLES[sum(origin.encode()) % len(PUZZLES)])
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
