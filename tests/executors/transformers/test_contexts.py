"""Contexts on a transformers model: the same tokens as on vLLM, and attention that a program
chooses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from agentrt import Context, Runtime
from agentrt.contexts import END, Attention, choices, json_schema, regex
from agentrt.engines import TransformersExecutor
from agentrt.errors import CallRejectedError
from tests.contexts.real import engine_of, run

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

WORDS = [1000 + 7 * n for n in range(100)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def runtime(token_runtime: Runtime) -> AsyncIterator[Runtime]:
    """Yield a runtime with the model of the engine that the tests of contexts share."""
    async with Runtime(TransformersExecutor(engine_of(token_runtime).info.model)) as runtime:
        yield runtime


async def test_contexts_give_what_they_give_on_vllm(
    runtime: Runtime, token_runtime: Runtime
) -> None:
    async def body(ctx: Context) -> tuple[list[object], list[float]]:
        context = await ctx.context(WORDS)
        trunk = context.fork()
        done = await context.generate(24, ignore_eos=True)
        pieces = [piece async for piece in trunk.fork().generate(24, ignore_eos=True)]
        scores = await trunk.score(done.token_ids, top=2)
        likely = await context.next_tokens(k=5)
        assert len(context) == len(WORDS) + 24
        values = [each.logprob for each in scores] + [value for _, value in likely]
        said = [done.token_ids, done.text, "".join(pieces), [token for token, _ in likely]]
        return [*said, [each.top[0][0] for each in scores]], values

    said, values = await run(runtime, body)
    expected, expected_values = await run(token_runtime, body)
    assert said == expected
    assert values == pytest.approx(expected_values, abs=1e-3)


async def test_chats_in_contexts_have_the_tokens_that_vllm_gives_them(
    runtime: Runtime, token_runtime: Runtime
) -> None:
    async def body(ctx: Context) -> tuple[int, ...]:
        context = await ctx.context([{"role": "user", "content": "Why do cats purr?"}])
        await context.generate(6, ignore_eos=True)
        await context.fill([{"role": "user", "content": "In one word?"}])
        return context.token_ids

    assert await run(runtime, body) == await run(token_runtime, body)


@dataclass(frozen=True, slots=True)
class Stairs:
    """A constraint: one of ten tokens, then one of ten others, and so on. The model may end it
    after four tokens.
    """

    start: int = 0

    def allowed(self, state: int) -> list[int]:
        first = 1000 + 100 * state
        return [] if state == 8 else [*range(first, first + 10), *([END] if state > 3 else [])]

    def advance(self, state: int, token: int) -> int:
        return state + 1


async def test_constraints_leave_the_tokens_that_they_leave_on_vllm(
    runtime: Runtime, token_runtime: Runtime
) -> None:
    async def body(ctx: Context) -> list[tuple[int, ...]]:
        context = await ctx.context(WORDS)
        constraints = (
            Stairs(),
            regex("[ab]{3} [0-9]{4}"),
            choices("left", "right"),
            json_schema({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}),
        )
        return [
            (await context.fork().generate(16, constrain=constraint)).token_ids
            for constraint in constraints
        ]

    found = await run(runtime, body)
    assert found == await run(token_runtime, body)
    assert [token // 100 for token in found[0]] == [*range(10, 10 + len(found[0]))]


async def test_a_constraint_without_an_allowed_token_is_refused_as_on_vllm(
    runtime: Runtime, token_runtime: Runtime
) -> None:
    async def body(ctx: Context) -> int:
        context = await ctx.context(WORDS)
        for temperature in (0.0, 1.0):
            with pytest.raises(CallRejectedError, match="could not follow the constraint"):
                await context.generate(
                    constrain=choices("left"), allowed=[5], temperature=temperature
                )
        return len(context)

    assert await run(runtime, body) == await run(token_runtime, body) == len(WORDS)


async def test_log_probabilities_of_allowed_tokens_are_those_of_the_likeliest(
    runtime: Runtime, token_runtime: Runtime
) -> None:
    """At a high temperature, the token itself is often not one of the likeliest."""

    async def body(ctx: Context) -> list[list[tuple[int, float]]]:
        context = await ctx.context(WORDS)
        done = await context.fork().generate(1, allowed=range(500, 520), logprobs=3)
        zero = await context.fork().generate(1, allowed=range(500, 520), logprobs=0)
        return [[*done.logprobs[0]], [*zero.logprobs[0]]]

    found = await run(runtime, body)
    expected = await run(token_runtime, body)
    assert [[token for token, _ in each] for each in found] == [
        [token for token, _ in each] for each in expected
    ]
    assert list(map(len, found)) == [3, 1]

    async def sampled(ctx: Context) -> list[int]:
        branches = [await ctx.context(WORDS) for _ in range(8)]
        done = [
            await branch.generate(
                1, allowed=range(500, 520), logprobs=2, temperature=2.0, seed=seed
            )
            for seed, branch in enumerate(branches)
        ]
        for each in done:
            own, *likely = each.logprobs[0]
            assert own[0] == each.token_ids[0]
            assert [value for _, value in likely] == sorted(
                (value for _, value in likely), reverse=True
            )
        return [len(each.logprobs[0]) for each in done]

    for lengths in (await run(runtime, sampled), await run(token_runtime, sampled)):
        assert set(lengths) <= {2, 3}


async def test_calls_with_an_attention_are_nodes_like_others(runtime: Runtime) -> None:
    """1. A text is scored with a window. 2. It is continued: only its end is computed. 3. Calls
    that name no attention do not use the window.
    """
    window = Attention(16, sinks=2)

    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS[:1])
        scores = await context.score(WORDS[1:], attention=window)
        assert [each.token_id for each in scores] == WORDS[1:]
        await context.fill(WORDS[1:])
        (likely, *_) = await context.next_tokens(k=1, attention=window)
        done = await context.generate(4, attention=window, ignore_eos=True)
        assert done.report.cached_tokens == len(WORDS) - 1
        assert done.token_ids[0] == likely[0]
        trunk = await ctx.context(WORDS)
        assert (await trunk.generate(4, ignore_eos=True)).token_ids != done.token_ids

    await run(runtime, body)


async def test_vllm_refuses_an_attention_and_names_who_takes_it(token_runtime: Runtime) -> None:
    async def body(ctx: Context) -> None:
        context = await ctx.context(WORDS)
        with pytest.raises(
            CallRejectedError, match=r"not support attention= .* --engine transformers"
        ):
            await context.generate(4, attention=Attention(8))

    await run(token_runtime, body)


async def test_what_is_dropped_goes_first_and_what_others_share_stays(runtime: Runtime) -> None:
    """1. There are a context, and one that shares nothing with it. 2. A fork of the first context
    is dropped: only the shared part is left. 3. The first context is dropped: it is now evicted
    before the other.
    """
    executor = runtime.executor
    assert isinstance(executor, TransformersExecutor)
    executor.prefixes.entries.clear()

    async def cached(ctx: Context) -> list[int]:
        await (await ctx.context([7])).next_tokens(k=1)  # after all that was to be done before
        return [each["tokens"] for each in (await executor.snapshot())["cached"]][:-1]

    async def body(ctx: Context) -> None:
        first = await ctx.context(WORDS[:40])
        await first.next_tokens(k=1)
        fork = first.fork()
        await (await ctx.context(WORDS[60:90])).next_tokens(k=1)
        await fork.generate(5, ignore_eos=True)
        assert await cached(ctx) == [30, 44]
        fork.drop()
        assert await cached(ctx) == [30, 40]
        first.drop()
        assert await cached(ctx) == [40, 30]

    await run(runtime, body)
