"""Long prompts are tokenized apart from short ones, which so never wait for them.

vLLM's renderer has one thread for all. A long prompt gets another, in the turn of whom it is for,
and only if it may fit at all: its characters are bounded, and its tokens counted piece by piece
until there are too many.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vllm.exceptions import VLLMValidationError

from agentrt.executors.frontend import WORKS_FOR

T = TypeVar("T")
LONG = 32_000
"""Characters, or tokens to decode: less takes some 20 ms."""
_SURE = 6
"""Characters of a token. A text with fewer, for the tokens that it may have, is likely to fit."""
_PIECE = 64_000


class Turns:
    """So many at a time; those who wait take turns by whom they are for."""

    def __init__(self, most: int) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._free = most

    @contextlib.asynccontextmanager
    async def taken(self, who: str) -> AsyncIterator[None]:
        """Wait for the turn; it ends with the block."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(who, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        """Give the turn to the one who had it the longest ago: dicts keep their order."""
        for who in tuple(self._waiting):
            queue = self._waiting.pop(who)
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    if queue:
                        self._waiting[who] = queue
                    turn.set_result(None)
                    return
        self._free += 1


def tokenize_apart(renderer: Any, max_model_len: int) -> Any:
    """Make one of vLLM's renderers tokenize long prompts in a thread of their own, and decode long
    outputs there; the renderer itself comes back.
    """
    quick, quick_decode = renderer._tokenize_prompt_async, renderer._async_tokenizer_decode
    turns, pool = Turns(1), ThreadPoolExecutor(1, thread_name_prefix="long-prompts")
    short = Turns(renderer.model_config.renderer_num_workers)

    async def apart(work: Callable[[], T]) -> T:
        async with turns.taken(WORKS_FOR.get()):
            # The thread cannot be stopped: whoever comes next waits for it.
            working = asyncio.get_running_loop().run_in_executor(pool, work)
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                await asyncio.wait([working])
                raise

    async def tokenize(prompt: Any, params: Any) -> Any:
        text = prompt["prompt"]
        if len(text) <= LONG:
            async with short.taken(WORKS_FOR.get()):  # one request may have a thousand prompts
                return await quick(prompt, params)
        most = params.max_total_tokens or max_model_len
        tokenizer = renderer.get_tokenizer()
        if len(text) > most * tokenizer.max_chars_per_token:
            raise _too_long(most, f"{len(text)} characters")

        def tokenized() -> Any:
            if params.truncate_prompt_tokens is None and len(text) > most * _SURE:
                check_tokens(tokenizer, text, most)
            return renderer._tokenize_prompt(prompt, params)

        return await apart(tokenized)

    async def decode(ids: Any, *args: Any, **options: Any) -> Any:
        if len(ids) <= LONG:
            return await quick_decode(ids, *args, **options)
        return await apart(lambda: renderer._decode(ids, *args, **options))

    renderer._tokenize_prompt_async, renderer._async_tokenizer_decode = tokenize, decode
    return renderer


def check_tokens(tokenizer: Any, text: str, most: int) -> None:
    """Raise vLLM's error as soon as the beginning of ``text`` has more than ``most`` tokens."""
    count = 0
    for start in range(0, len(text), _PIECE):
        piece = tokenizer(text[start : start + _PIECE], add_special_tokens=False)
        # A cut may split tokens: so many fewer there may be in the whole.
        count += len(piece["input_ids"]) - tokenizer.max_chars_per_token
        if count > most:
            raise _too_long(most, f"at least {count} input tokens")


def _too_long(most: int, has: str) -> VLLMValidationError:
    return VLLMValidationError(
        f"This model's maximum context length is {most} tokens. However, your prompt contains "
        f"{has}. Please reduce the length of the input prompt.",
        parameter="input_text",
    )
