"""Contexts under everything that may come between: admission, retention, preemption, replicas.

The engines have vLLM's scheduler and a KV cache that holds a part of what the programs hold; each
token follows from all before it, so that a wrong one anywhere changes all after it.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from agentrt import Context, Runtime, program
from agentrt.contexts import TokenContext
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.scheduler.config import SchedulerConfig
from tests.contexts.stepping import SteppedReplicas, extended

pytestmark = pytest.mark.engine
COMBINATIONS = [
    *((policy, "memory", "cost") for policy in ("fcfs", "atlas", "adaptive")),
    *(("atlas", admission, "cost") for admission in ("off", "cap")),
    ("atlas", "memory", "lru"),
]
SHARED = tuple(range(1, 65))
"""What all programs begin with: four blocks."""
PROGRAMS = 16


def replicas(policy: str, admission: str, retention: str) -> SteppedReplicas:
    """Two engines, in which three of the programs have room at a time."""
    config = SchedulerConfig(
        policy=policy,
        quanta=(1.0, 4.0),
        min_running_steps=0,
        min_remaining_tokens=0,
        admission=admission,
        admission_cap=3,
        retention=retention,
    )
    return SteppedReplicas(2, config, slots=2, blocks=30)


class Life:
    """One program: what it does with its contexts, and what each of them must hold."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._held: list[tuple[TokenContext, tuple[int, ...]]] = []

    async def run(self, ctx: Context) -> int:
        text = (*SHARED, *(500 + self._draw.randrange(500) for _ in range(20)))
        self._held = [(await ctx.context(text), text)]
        for _ in range(self._draw.randint(4, 8)):
            await self._draw.choice(
                (self._grow, self._grow, self._fork, self._give_up, self._truncate, self._drop)
            )()
            if self._draw.random() < 0.3:
                await ctx.tool(asyncio.sleep, 0)
        for context, expected in self._held:
            assert context.token_ids == expected
            assert (await context.next_tokens(1))[0][0] == extended(expected, 1)[-1]
        return len(self._held)

    async def _grow(self) -> None:
        """All that it holds continue at once."""

        async def one(place: int, count: int) -> None:
            context, text = self._held[place]
            await context.generate(count, ignore_eos=True)
            self._held[place] = context, extended(text, count)

        await asyncio.gather(
            *(one(place, self._draw.randint(1, 24)) for place in range(len(self._held)))
        )

    async def _fork(self) -> None:
        context, text = self._draw.choice(self._held)
        for _ in range(min(3, 5 - len(self._held))):
            branch = context.fork()
            await branch.fill([more := 500 + self._draw.randrange(500)])
            self._held.append((branch, (*text, more)))

    async def _give_up(self) -> None:
        """A generation that is cancelled leaves the context as it was."""
        place = self._draw.randrange(len(self._held))
        context, text = self._held[place]

        async def go_on() -> None:
            await context.generate(40, ignore_eos=True)

        going = asyncio.create_task(go_on())
        for _ in range(self._draw.randint(0, 12)):
            await asyncio.sleep(0)
        going.cancel()
        await asyncio.wait([going])
        if not going.cancelled():
            self._held[place] = context, extended(text, 40)

    async def _truncate(self) -> None:
        place = self._draw.randrange(len(self._held))
        context, text = self._held[place]
        length = self._draw.randint(1, len(text))
        context.truncate(length)
        self._held[place] = context, text[:length]

    async def _drop(self) -> None:
        if len(self._held) > 1:
            self._held.pop(self._draw.randrange(len(self._held)))[0].drop()


def check_nothing_is_left(replicas: SteppedReplicas) -> None:
    """No call, no program and no block but what the next program of their type begins with."""
    for engine in replicas.engines:
        found = engine.scheduler.control("snapshot")
        assert found["requests"] == 0
        assert found["protected_blocks"] <= len(SHARED) // BLOCK_SIZE
        assert found["programs"] == found["running"] == found["waiting"] == []
        assert found["free_blocks"] == engine.blocks - 1
        admission = engine.scheduler.core.admission
        assert admission is None or len(admission._not_admitted) == len(admission.residents) == 0
        assert engine.scheduler.reset_prefix_cache()


@pytest.mark.parametrize(("policy", "admission", "retention"), COMBINATIONS)
async def test_every_context_is_served_and_no_block_is_left(
    policy: str, admission: str, retention: str
) -> None:
    """A quarter of the programs is cancelled."""
    engines = replicas(policy, admission, retention)

    @program
    async def life(ctx: Context, seed: int) -> int:
        return await Life(seed).run(ctx)

    async with Runtime(engines) as runtime:
        runs = [runtime.start(life, seed) for seed in range(PROGRAMS)]
        for run in runs[::4]:
            for _ in range(20):
                await asyncio.sleep(0)
            run.cancel()
        ends = await asyncio.gather(*(run.wait() for run in runs), return_exceptions=True)
        for end in (end for number, end in enumerate(ends) if number % 4):
            assert isinstance(end, int), end
        check_nothing_is_left(engines)
    assert all(engine.scheduler.steps for engine in engines.engines)
    preempted = sum(engine.preempted for engine in engines.engines)
    assert preempted > 0 or policy == "fcfs"


@pytest.mark.parametrize("admission", ["off", "memory"])
async def test_forks_go_where_their_trunk_was_computed(admission: str) -> None:
    engines = replicas("atlas", admission, "cost")
    trunks = [tuple(range(start, start + 8 * BLOCK_SIZE)) for start in (1, 201)]

    @program
    async def forks(ctx: Context, number: int) -> list[tuple[str, int]]:
        trunk = await ctx.context(trunks[number])
        first = await trunk.fork().generate(2, ignore_eos=True)
        found = [(first.report.replica, 0)]
        for token in range(3):
            branch = trunk.fork()
            await branch.fill([900 + token])
            report = (await branch.generate(2, ignore_eos=True)).report
            found.append((report.replica, report.cached_tokens))
        return found

    async with Runtime(engines) as runtime:
        both = await asyncio.gather(*(runtime.start(forks, number).wait() for number in (0, 1)))
    for (where, _), *others in both:
        assert others == [(where, 8 * BLOCK_SIZE)] * 3
    assert len({found[0][0] for found in both}) == 2
