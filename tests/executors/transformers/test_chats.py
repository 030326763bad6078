"""Chats on a transformers model, as programs have them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.engines import TransformersExecutor
from agentrt.errors import CallRejectedError, NotServedError
from agentrt.executors.chat_api import NoProgram
from agentrt.program import Program

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(folder: Path) -> AsyncIterator[Runtime]:
    async with Runtime(TransformersExecutor(str(folder)), model_names=["tiny"]) as runtime:
        yield runtime


async def result(runtime: Runtime, made: Program) -> Any:
    return await runtime.start(made).wait()


async def test_a_chat_is_answered_whole_and_in_pieces(runtime: Runtime) -> None:
    @program
    async def chats(ctx: Context) -> tuple[str, str, int]:
        whole = await ctx.llm("Hello.", max_tokens=6, ignore_eos=True)
        stream = ctx.llm("Hello.", max_tokens=6, ignore_eos=True, stream=True)
        pieces = [piece async for piece in stream]
        assert whole.report.output_tokens == 6
        return whole.text, "".join(pieces), whole.report.prompt_tokens

    text, streamed, tokens = await result(runtime, chats)
    assert text == streamed != ""
    frontend = await runtime.frontend()
    chat = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hello."}]}]}
    assert await frontend.count_tokens(chat) == tokens
    ids = await frontend.tokenize("Hello, world")
    assert await frontend.detokenize(ids) == "Hello, world"
    profile = frontend.profile("tiny")
    assert (profile.model, profile.max_model_len, profile.tools) == ("tiny", 2048, False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"response_format": {"type": "json_object"}},
            r"plain text and does not support schema= \(response_format\); leave",
        ),
        (
            {"tools": [{"type": "function"}], "tool_choice": "auto", "logprobs": True},
            "support logprobs and tools; leave logprobs and tools out",
        ),
        ({"n": 2}, "support n; leave n out, or run with --engine vllm"),
    ],
)
async def test_more_than_text_is_refused(
    runtime: Runtime, fields: dict[str, Any], said: str
) -> None:
    frontend = await runtime.frontend()
    chat = {"messages": [{"role": "user", "content": "Hello."}], **fields}
    with pytest.raises(CallRejectedError, match=said):
        await frontend.chat(chat, NoProgram(runtime.executor))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "content of a message is 5; use a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "has the part {'type': 'text'}; use {'type': 'text', 'text': …}",
        ),
        ({"messages": [{"role": "user", "content": ["Hello."]}]}, "has the part 'Hello.'; use"),
        ({"top_k": "a"}, "top_k is 'a'; use an integer"),
        ({"top_p": [1]}, r"top_p is \[1\]; use a number"),
        ({"seed": 1.5}, "seed is 1.5; use an integer"),
        ({"stop": ["a", 5]}, r"stop is \['a', 5\]; use a text or a list of texts"),
        ({"stop_token_ids": ["a"]}, r"stop_token_ids is \['a'\]; use a list of integers"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs is 3; use an object"),
        ({"messages": [{"role": "user", "content": "a"}, 5]}, "messages is .*5.; use a list of"),
        ({"messages": "Hello."}, "messages is 'Hello.'; use a list of messages"),
        ({"top_p": 0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"top_k": -5}, "top_k is -5; it must be at least 1, or 0 for no limit"),
    ],
)
async def test_a_field_of_a_wrong_form_is_refused(
    runtime: Runtime, fields: dict[str, Any], said: str
) -> None:
    frontend = await runtime.frontend()
    chat = {"messages": [{"role": "user", "content": "Hello."}], **fields}
    with pytest.raises(CallRejectedError, match=said):
        await frontend.chat(chat, NoProgram(runtime.executor))


async def test_whole_numbers_may_have_a_decimal_point(runtime: Runtime) -> None:
    """vLLM's front end converts them, too."""
    frontend = await runtime.frontend()
    chat = {"messages": [{"role": "user", "content": "Hello."}], "temperature": 1.0}
    answers = [
        await frontend.chat(
            {**chat, "seed": kind(3), "top_k": kind(5), "max_tokens": kind(4)},
            NoProgram(runtime.executor),
        )
        for kind in (int, float)
    ]
    assert answers[0] == answers[1]


async def test_an_image_is_refused(runtime: Runtime) -> None:
    frontend = await runtime.frontend()
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    with pytest.raises(CallRejectedError, match="does not support images or audio"):
        await frontend.count_tokens({"messages": [picture]})


async def test_a_chat_that_the_template_refuses_is_told(runtime: Runtime) -> None:
    frontend = await runtime.frontend()
    chat = {"messages": [], "continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(CallRejectedError, match="chat template refuses the chat: "):
        await frontend.count_tokens(chat)


async def test_half_of_a_surrogate_pair_is_refused(runtime: Runtime) -> None:
    frontend = await runtime.frontend()
    text = "Hello\ud83d"
    with pytest.raises(CallRejectedError, match="has half of a surrogate pair"):
        await frontend.tokenize(text)
    with pytest.raises(CallRejectedError, match="has half of a surrogate pair"):
        await frontend.count_tokens({"messages": [{"role": "user", "content": text}]})


async def test_another_model_is_not_served(runtime: Runtime) -> None:
    @program
    async def asks(ctx: Context) -> None:
        await ctx.llm("Hello.", model="gpt")

    with pytest.raises(NotServedError, match="serves 'tiny' or"):
        await result(runtime, asks)
