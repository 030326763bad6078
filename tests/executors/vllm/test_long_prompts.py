"""Short prompts never wait for long ones, and long prompts take turns by tenant."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.exceptions import VLLMValidationError

from agentrt.executors.chat_api import WORKS_FOR
from agentrt.executors.vllm.entrypoints.model_frontend import (
    AHEAD,
    LONG_PROMPT,
    MANY_MESSAGES,
    check_tokens,
    work_apart,
)
from agentrt.executors.vllm.turns import Turns

MOST = 20_000
WAIT_S = 60.0


class Tokenizer:
    """A tokenizer that makes a token of every second character."""

    max_chars_per_token = 10

    def __init__(self) -> None:
        self.read = 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.read += len(text)
        return {"input_ids": list(text[::2])}


class Renderer:
    """A renderer like vLLM's, with one thread. Its long work waits until ``go`` is set."""

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(renderer_num_workers=1)
        self.tokenizer = Tokenizer()
        self.go = threading.Event()
        self.order: list[str] = []

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    async def _tokenize_prompt_async(self, prompt: Any, params: Any) -> str:
        if "who" in prompt:
            self.order.append(prompt["who"])
            await asyncio.Event().wait()
        return "short"

    async def _async_tokenizer_decode(self, ids: Any) -> str:
        return "short"

    def _tokenize_prompt(self, prompt: Any, params: Any) -> str:
        assert self.go.wait(WAIT_S)
        self.order.append(prompt["who"])
        return "long"

    def _decode(self, ids: Any) -> str:
        return "long"

    async def render_messages_async(self, messages: Any, params: Any) -> str:
        return "vLLM's"

    def render_messages(self, messages: Any, params: Any) -> str:
        return threading.current_thread().name


def params(**more: Any) -> Any:
    return SimpleNamespace(**{"max_total_tokens": MOST, "truncate_prompt_tokens": None, **more})


async def turns_over() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_short_prompt_does_not_wait_and_long_ones_take_turns() -> None:
    """One tenant brings five long prompts, and then another brings one, which is the third."""
    renderer = work_apart(Renderer(), MOST)

    async def long(who: str) -> Any:
        WORKS_FOR.set(who)
        return await renderer._tokenize_prompt_async(
            {"prompt": "x" * (LONG_PROMPT + 1), "who": who}, params()
        )

    made = [asyncio.create_task(long("greedy")) for _ in range(5)]
    await turns_over()
    made.append(asyncio.create_task(long("other")))
    await turns_over()
    assert await renderer._tokenize_prompt_async({"prompt": "x"}, params()) == "short"
    assert await renderer._async_tokenizer_decode([1]) == "short"
    gone = made.pop(2)
    gone.cancel()
    renderer.go.set()
    assert await asyncio.gather(*made) == ["long"] * 5
    assert renderer.order == ["greedy", "greedy", "other", "greedy", "greedy"]
    assert await renderer._async_tokenizer_decode([1] * (LONG_PROMPT + 1)) == "long"


async def test_short_prompts_wait_for_few_before_them() -> None:
    """The renderer's thread gets only a few prompts at once, and not all of one tenant's."""
    renderer = work_apart(Renderer(), MOST)

    async def short(who: str) -> Any:
        WORKS_FOR.set(who)
        return await renderer._tokenize_prompt_async(
            {"prompt": "x" * (AHEAD // 2), "who": who}, params()
        )

    made = [asyncio.create_task(short(who)) for who in ("greedy", "greedy", "greedy", "other")]
    await turns_over()
    assert renderer.order == ["greedy", "greedy"]
    made[0].cancel()
    made[1].cancel()
    await turns_over()
    assert renderer.order == ["greedy", "greedy", "greedy", "other"]
    for task in made:
        task.cancel()
    await asyncio.wait(made)


async def test_a_chat_of_many_messages_is_read_beside_the_event_loop() -> None:
    """A chat with images stays in the event loop: its images are loaded side by side."""
    renderer, text = work_apart(Renderer(), MOST), [{"type": "text", "text": "hi"}]
    user = {"role": "user", "content": "hi"}
    loads = {"role": "user", "content": [*text, {"type": "image_url", "image_url": {}}]}
    for one in (user, {**user, "content": text}, {**user, "content": None}):
        assert await renderer.render_messages_async([one] * MANY_MESSAGES, None) == "vLLM's"
        long = await renderer.render_messages_async([one] * (MANY_MESSAGES + 1), None)
        assert long.startswith("long-prompts")
    assert await renderer.render_messages_async([*[user] * MANY_MESSAGES, loads], None) == "vLLM's"


async def test_a_text_that_cannot_fit_is_refused_unread() -> None:
    renderer = work_apart(Renderer(), MOST)
    far = {"prompt": "x" * (MOST * Tokenizer.max_chars_per_token + 1)}
    for asked in (params(), params(truncate_prompt_tokens=5), params(max_total_tokens=None)):
        with pytest.raises(VLLMValidationError, match="maximum context length is 20000"):
            await renderer._tokenize_prompt_async(far, asked)
    assert renderer.tokenizer.read == 0


async def test_tokens_are_counted_until_there_are_too_many() -> None:
    renderer = work_apart(Renderer(), MOST)
    long = {"prompt": "x" * (MOST * 8), "who": "a"}
    with pytest.raises(VLLMValidationError, match="at least 31990 input tokens"):
        await renderer._tokenize_prompt_async(long, params())
    assert renderer.tokenizer.read == 64_000
    check_tokens(Tokenizer(), "x" * 2 * MOST, MOST)


async def test_so_many_have_the_turn_at_once_and_nobody_who_left() -> None:
    turns, order, go = Turns(2), list[str](), asyncio.Event()

    async def take(name: str) -> None:
        await turns.take(name[0])
        try:
            order.append(name)
            await go.wait()
        finally:
            turns.over()

    tasks = [asyncio.create_task(take(name)) for name in ("a1", "a2", "a3", "a4", "b1")]
    await turns_over()
    assert order == ["a1", "a2"]
    tasks[2].cancel()
    await turns_over()
    go.set()
    await asyncio.wait(tasks)
    assert order == ["a1", "a2", "a4", "b1"]
    assert turns._free == 2


async def test_a_turn_is_as_large_as_its_work() -> None:
    """Work that is larger than all the room takes all of it; small pieces of work share it."""
    turns = Turns(10)
    await turns.take("a", 30)
    waiting = [asyncio.create_task(turns.take("a", size)) for size in (4, 4, 4, 4)]
    await turns_over()
    assert not any(one.done() for one in waiting)
    turns.over(30)
    await turns_over()
    assert [one.done() for one in waiting] == [True, True, True, False]
    waiting.pop().cancel()
    for _ in waiting:
        turns.over(4)
    await turns_over()
    assert turns._free == 10
    assert turns._waiting.next() is None
