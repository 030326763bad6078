"""An answer that the default limit cuts causes one warning, in every way of calling a model."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agentrt import Context, Reply, Runtime, program
from agentrt.program import context as context_module
from tests.doubles.scripted import ScriptedExecutor


@pytest.fixture(autouse=True)
def _forget_the_warning() -> None:
    context_module._warn_of_default_limit.cache_clear()


async def called(ctx: Context, **options: Any) -> str:
    reply: Reply = await ctx.llm("Tell.", **options)
    return reply.finish_reason


async def streamed(ctx: Context, **options: Any) -> str:
    stream = ctx.llm("Tell.", stream=True, **options)
    async for _ in stream:
        pass
    return stream.reply.finish_reason


async def stepped(ctx: Context, **options: Any) -> str:
    return (await ctx.step("Tell.", tools=(), **options)).reply.finish_reason


@pytest.mark.parametrize("call", [called, streamed, stepped])
@pytest.mark.parametrize(
    ("options", "words", "warnings"),
    [
        ({}, 300, 1),
        ({"n": 2}, 300, 1),
        ({}, 20, 0),
        ({"max_tokens": 9}, 300, 0),
        ({"max_tokens": None}, 300, 0),
        ({"extra_body": {"max_tokens": 9}}, 300, 0),
    ],
)
async def test_a_cut_at_the_default_limit_causes_one_warning(
    call: Callable[..., Awaitable[str]],
    options: Any,
    words: int,
    warnings: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @program
    async def agent(ctx: Context) -> list[str]:
        return [await call(ctx, **options) for _ in range(3)]

    with caplog.at_level(logging.WARNING):
        async with Runtime(ScriptedExecutor(lambda call: "so " * words)) as runtime:
            reasons = await runtime.start(agent).wait()
    cut_by_a_limit = words > 256 and options.get("max_tokens", 256) is not None
    assert reasons == ["length" if cut_by_a_limit else "stop"] * 3
    messages = [record.getMessage() for record in caplog.records]
    cut = [text for text in messages if "default limit" in text]
    assert len(cut) == warnings
    assert all("max_tokens=None" in text for text in cut)
