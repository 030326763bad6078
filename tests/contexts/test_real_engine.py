"""Contexts on a real engine: the same tokens however its memory is used, and no more work."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

import pytest

from agentrt import Context, Runtime, program
from agentrt.contexts import TokenContext
from agentrt.errors import UnknownContextError
from agentrt.serving.tenants import Tenants
from agentrt.serving.tenants.sharing import FairSharing
from tests.contexts.real import computed, engine_of, fresh, run
from tests.engine.lent import Lent

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]
WORDS = [1000 + 7 * n for n in range(100)]
"""Token ids: three blocks, and four tokens of a fourth."""
DRAFT = [2000 + 5 * n for n in range(30)]


async def test_score_computes_no_more_than_the_text_after_the_last_block(
    token_runtime: Runtime,
) -> None:
    """1. A prompt of the same tokens is scored whole. 2. It is cached, and its end scored again."""
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        first = await (await ctx.context(WORDS[:1])).score([*WORDS[1:], *DRAFT], top=3)
        assert first.report.cached_tokens == 0
        context = await ctx.context(WORDS)
        before = await computed(token_runtime)
        scores = await context.score(DRAFT, top=3)
        # Its tokens and those of its context's last block: the whole text lay in the cache.
        assert await computed(token_runtime) - before == len(DRAFT) + len(WORDS) % 32
        assert scores.report.cached_tokens == 96
        assert scores.report.steps == 1
        assert [each.token_id for each in scores] == DRAFT
        assert len(context) == len(WORDS)
        for again, each in zip(first.tokens[-30:], scores.tokens, strict=True):
            assert again.token_id == each.token_id
            assert again.logprob == pytest.approx(each.logprob, abs=1e-4)
            assert [i for i, _ in again.top] == [i for i, _ in each.top]
        assert [i for i, _ in first.after] == [i for i, _ in scores.after]

    await run(token_runtime, body)


async def test_forks_that_ask_at_once_are_computed_in_one_step(token_runtime: Runtime) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        trunk = await ctx.context(WORDS)
        await trunk.next_tokens(1)
        for _ in range(5):
            before = (await engine_of(token_runtime).snapshot())["steps"]
            forks = [trunk.fork() for _ in range(8)]
            await asyncio.gather(*(fork.next_tokens(2) for fork in forks))
            assert (await engine_of(token_runtime).snapshot())["steps"] == before + 1

    await run(token_runtime, body)


async def test_score_agrees_with_what_generation_says(token_runtime: Runtime) -> None:
    await fresh(token_runtime)

    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS)
        trunk = context.fork()
        done = await context.generate(12, logprobs=2, ignore_eos=True)
        scores = await trunk.score(done.token_ids, top=1)
        for place, score in zip(done.logprobs, scores, strict=True):
            assert place[0][0] == score.token_id
            assert place[0][1] == pytest.approx(score.logprob, abs=1e-4)
            assert score.top[0][0] == score.token_id  # it was greedy
        likely = await trunk.next_tokens(k=5)
        assert likely[0][0] == done.token_ids[0]
        assert [p for _, p in likely] == sorted((p for _, p in likely), reverse=True)
        assert scores.after[0] == (await context.next_tokens(k=1))[0]

    await run(token_runtime, body)


# Preempts whenever it may: a new call beats one that ran for a few milliseconds.
RESTLESS = {
    "quanta": (0.002, 0.004, 0.008, 0.016),
    "min_running_steps": 0,
    "min_remaining_tokens": 0,
}
BLOCK = 32
Evict = Callable[[], Awaitable[None]]


async def branch_of(trunk: TokenContext, number: int, evict: Evict) -> tuple[int, ...]:
    """A greedy or a sampled branch, cut and filled again."""
    context = trunk.fork()
    await context.fill([200 + number] * (number + 1))
    heat = 0.8 if number % 2 else 0.0
    await context.generate(24, ignore_eos=True, temperature=heat, seed=number)
    await evict()
    context.truncate(len(context) - 5)
    likely = await context.next_tokens(k=2)
    await context.fill([likely[1][0]])
    await evict()
    await context.generate(12, ignore_eos=True)
    return context.token_ids


async def trunk_of(ctx: Context, seed: int) -> TokenContext:
    rng = random.Random(seed)
    return await ctx.context([rng.randrange(100, 9000) for _ in range(70)])


@program
async def grow(ctx: Context, seed: int) -> list[tuple[int, ...]]:
    """Branches beside each other."""
    trunk = await trunk_of(ctx, seed)
    return list(await asyncio.gather(*(branch_of(trunk, n, _stay) for n in range(6))))


async def _stay() -> None:
    """Nothing is evicted."""


async def test_tokens_are_the_same_under_every_policy_preemption_and_eviction(
    token_runtime: Runtime,
) -> None:
    """Of eight programs at once in shared batches, and of one alone whose memory goes away."""
    engine = engine_of(token_runtime)
    told = {}
    for policy in ("fcfs", "atlas", "plas", "mlfq", "adaptive"):
        await fresh(token_runtime, policy, **({} if policy == "fcfs" else RESTLESS))
        runs = [token_runtime.start(grow, seed) for seed in range(8)]
        told[policy] = [await run.wait() for run in runs]
        preemptions = sum(run.row.usage.preemptions for run in runs)
        assert preemptions > 0 or policy in ("fcfs", "adaptive")
    for policy, tokens in told.items():
        assert tokens == told["fcfs"], policy

    async def forgetting(ctx: Context) -> list[tuple[int, ...]]:
        trunk = await trunk_of(ctx, 0)
        return [await branch_of(trunk, n, engine.forget_prefixes) for n in range(6)]

    await fresh(token_runtime)
    assert await run(token_runtime, forgetting) == told["fcfs"][0]


@pytest.mark.parametrize("policy", ["fcfs", "atlas"])
async def test_branches_that_start_together_share_what_came_before(
    token_runtime: Runtime, policy: str
) -> None:
    """32 of a context of 2,000 tokens. Full blocks are shared: 16 tokens are in none."""
    await fresh(token_runtime, policy)
    ids = [random.Random(policy).randrange(100, 9000) for _ in range(2000)]

    async def body(ctx: Context) -> None:
        trunk = await ctx.context(ids)
        branches = [trunk.fork() for _ in range(32)]

        async def go(branch: TokenContext, number: int) -> None:
            await branch.fill([300 + number] * 8)
            await branch.generate(8, ignore_eos=True)

        before = await computed(token_runtime)
        await asyncio.gather(*(go(branch, n) for n, branch in enumerate(branches)))
        ideal = 2000 + 31 * (2000 % BLOCK) + 32 * (8 + 8)
        assert await computed(token_runtime) - before <= 1.02 * ideal

    await run(token_runtime, body)


async def test_a_thousand_forks_leave_no_block_behind(token_runtime: Runtime) -> None:
    """Half of them are dropped with what they have generated, half are cut off while they do."""
    await fresh(token_runtime, "atlas", retention="cost")
    engine = engine_of(token_runtime)
    free = (await engine.snapshot())["free_blocks"]

    async def body(ctx: Context) -> None:
        trunk = await ctx.context(WORDS)
        gate = asyncio.Semaphore(64)

        async def use(number: int) -> None:
            async with gate:
                with trunk.fork() as branch:
                    await branch.fill([400 + number])
                    if number % 2:
                        await branch.generate(2, ignore_eos=True)
                        return
                    async for _ in branch.generate(40, ignore_eos=True):
                        break

        await asyncio.gather(*(use(number) for number in range(1000)))

    await run(token_runtime, body)
    after = await engine.snapshot()
    assert after["requests"] == 0
    assert after["programs"] == []
    assert after["free_blocks"] == free


async def test_a_dropped_context_gives_its_blocks_back_and_leaves_what_others_have(
    token_runtime: Runtime,
) -> None:
    await fresh(token_runtime, "atlas", retention="cost")
    engine = engine_of(token_runtime)

    async def protected(expected: int) -> None:
        async with asyncio.timeout(60):
            while (await engine.snapshot())["protected_blocks"] != expected:
                await asyncio.sleep(0.005)

    async def body(ctx: Context) -> None:
        trunk = await ctx.context(WORDS)
        one, other = trunk.fork(), trunk.fork()
        for branch, first in ((one, 3000), (other, 4000)):
            await branch.fill(range(first, first + 60))
            await branch.generate(2, ignore_eos=True)
        await protected(3 + 2 + 2)
        one.drop()
        await protected(3 + 2)
        trunk.drop()
        other.drop()
        await protected(0)

    await run(token_runtime, body)


async def test_two_tenants_share_neither_blocks_nor_names(token_runtime: Runtime) -> None:
    """1. Both read the same tokens, and save them. 2. The first one again, which finds its own."""
    await fresh(token_runtime)

    @program
    async def reads(ctx: Context) -> tuple[int, int]:
        context = await ctx.context(WORDS)
        await context.save("words")
        scores = await context.score(DRAFT)
        done = await context.generate(1, ignore_eos=True)
        return scores.report.cached_tokens, done.report.cached_tokens

    @program
    async def forgets(ctx: Context) -> int:
        context = await ctx.open("words")
        await ctx.forget("words")
        return len(context)

    lent = Lent(engine_of(token_runtime))
    async with Runtime(FairSharing(lent, Tenants(time.monotonic), isolate=True)) as runtime:
        cached = [
            await runtime.start(reads, tenant=name).wait() for name in ("anna", "ben", "anna")
        ]
        lengths = [await runtime.start(forgets, tenant=name).wait() for name in ("anna", "ben")]
        with pytest.raises(UnknownContextError, match="available: none"):
            await runtime.start(forgets, tenant="ben").wait()
    assert cached == [(0, 96), (0, 96), (96, 96)]
    assert lengths == [100, 100]
