"""Contexts on a real engine: the same tokens however its memory is used, and no more work."""

from __future__ import annotations

import pytest

from agentrt import Context, Runtime
from tests.contexts.real import computed, fresh, run

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
