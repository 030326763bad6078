"""Programs that are parked and come back at random: all end right, and memory has few of them."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from pathlib import Path
from typing import Any

from agentrt import Context, program
from agentrt.runtime.run import Run
from tests.serving.programs.parking import asks, served


def runs_in_memory() -> int:
    gc.collect()
    return sum(isinstance(one, Run) for one in gc.get_objects())


@program
async def tree(ctx: Context, seed: int) -> Any:
    """Random code: branches that ask, call, sleep, or branch."""
    rng = random.Random(seed)

    async def grow(ctx: Context, name: str, depth: int, shape: float) -> Any:
        own = random.Random(shape)
        found: list[Any] = []
        for number in range(own.randint(1, 3)):
            what, label = own.random(), f"{name}{number}"
            if what < 0.35:
                found.append(await ctx.human(label))
            elif what < 0.6:
                found.append(str(await ctx.llm(label)))
            elif what < 0.7:
                await ctx.sleep(0.002)
            elif depth:
                shapes = [own.random() for _ in range(2)]
                grown = (grow(ctx, f"{label}/{n}", depth - 1, s) for n, s in enumerate(shapes))
                found.append(await asyncio.gather(*grown))
        return found

    helping = ctx.spawn(grow, "h", 1, rng.random())
    return [await grow(ctx, "m", 2, rng.random()), await helping]


async def disturbed(path: Path, seed: int, calls: Counter[str], seen: Counter[str]) -> Any:
    """The result of a tree whose server is stopped, and which is parked, at random moments."""
    run, rng = "", random.Random(seed)
    while True:
        async with served(path, tree) as local:
            run = run or await local.started("tree", input=seed)
            try:
                for _ in range(rng.randint(5, 25)):
                    found = await local.run(run)
                    if found["state"] == "done":
                        return found["result"]
                    seen["parked" if found["parked"] else "live"] += 1
                    what = rng.random()
                    if what < 0.4:
                        await local.park()
                    elif what < 0.6 and found["questions"]:
                        question = rng.choice(found["questions"])
                        await local.answer(question, f"yes {question['question']}")
                    for _ in range(rng.randint(0, 30)):
                        await asyncio.sleep(0)
            finally:
                calls.update(str(call.spec.messages[-1]["content"]) for call in local.engine.calls)
                seen["lives"] += 1


async def undisturbed(path: Path, seed: int) -> Any:
    async with served(path, tree, park_s=0.0) as local:
        run = await local.started("tree", input=seed)
        while (found := await local.run(run))["state"] != "done":
            for question in found["questions"]:
                await local.answer(question, f"yes {question['question']}")
            await asyncio.sleep(0)
        return found["result"]


async def test_parked_at_random_moments(tmp_path: Path) -> None:
    """The result is that of an undisturbed run."""
    seen = Counter[str]()
    for seed in range(6):
        calls = Counter[str]()
        result = await disturbed(tmp_path / f"{seed}", seed, calls, seen)
        assert result == await undisturbed(tmp_path / f"{seed} whole", seed)
        assert max(calls.values()) <= 2  # one that was under way at a stop is made again
    assert min(seen["parked"], seen["live"], seen["lives"]) > 12, seen


MANY = 120


async def test_many_are_answered_in_any_order_after_a_restart(tmp_path: Path) -> None:
    """No more of them are in memory than are answered at a time."""
    async with served(tmp_path / "j", asks) as local:
        ids = [await local.started("asks", input=f"tea {n}") for n in range(MANY)]
        for run in ids:
            await local.parked(run)
        assert runs_in_memory() == 0
    async with served(tmp_path / "j", asks) as local:
        assert local.server.runtime.runs == {}
        questions = await local.questions(limit=1000)
        assert len(questions) == MANY
        random.Random(1).shuffle(questions)
        most = 0
        for question in questions:
            await local.answer(question, question["question"])
            most = max(most, len(local.server.runtime.runs))
        for n, run in enumerate(ids):
            assert await local.done(run) == [f"said tea {n}", f"tea {n}?", f"said tea {n} again"]
        assert most < 20
        assert local.server.runtime.runs == {}
