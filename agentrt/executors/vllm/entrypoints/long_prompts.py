"""Renders, tokenizes and decodes long chats and prompts in their own thread, so that short chats
need not wait for them.

By default, vLLM's renderer has a single thread, and reads messages in the event loop. Here long
chats and prompts get another thread, in which tenants take turns. A prompt with too many characters
for the model's context is refused before it is tokenized. If it still may not fit, its tokens are
counted piece by piece until there are too many.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from vllm.exceptions import VLLMValidationError

from agentrt.executors.chat_api import WORKS_FOR
from agentrt.executors.vllm.turns import SharedThread, Turns

LONG = 32_000
"""Maximum length of a short prompt: in characters if it is text, in tokens if it is token ids. To
tokenize or decode this much takes about 20 ms.
"""
MANY = 64
"""Maximum number of messages of a short chat. To read this many takes about 1 ms."""
AHEAD = 8_000
"""While this many characters of short prompts wait for a thread of vLLM's, no further short prompt
is passed to the thread. To tokenize this many takes about 5 ms.

If prompts were passed one by one, the thread and the event loop would wake each other for each
prompt.
"""
_SURE = 6
"""A prompt with at most this many characters per token of the model's context is assumed to fit.

The tokens of longer prompts are counted by `check_tokens` first.
"""
_PIECE = 64_000
"""Characters that `check_tokens` tokenizes at a time."""


def work_apart(renderer: Any, max_model_len: int) -> Any:
    """Make one of vLLM's renderers handle long chats and prompts in a thread of their own.

    Prompts are tokenized, or decoded if they are token ids. Returns the renderer.
    ``max_model_len`` is the model's context in tokens; longer prompts get vLLM's
    `VLLMValidationError`.
    """
    quick, quick_decode = renderer._tokenize_prompt_async, renderer._async_tokenizer_decode
    run_apart, short = (
        SharedThread("long-prompts", equal=True).run,
        Turns(AHEAD * renderer.model_config.renderer_num_workers),
    )

    async def tokenize(prompt: Any, params: Any) -> Any:
        text = prompt["prompt"]
        if len(text) <= LONG:
            # Tenants take turns, since one request may have a thousand prompts.
            await short.take(WORKS_FOR.get(), len(text))
            try:
                return await quick(prompt, params)
            finally:
                short.over(len(text))
        most = params.max_total_tokens or max_model_len
        tokenizer = renderer.get_tokenizer()
        if len(text) > most * tokenizer.max_chars_per_token:
            raise _too_long(most, f"{len(text)} characters")

        def tokenized() -> Any:
            if params.truncate_prompt_tokens is None and len(text) > most * _SURE:
                check_tokens(tokenizer, text, most)
            return renderer._tokenize_prompt(prompt, params)

        return await run_apart(tokenized, WORKS_FOR.get())

    async def decode(ids: Any, *args: Any, **options: Any) -> Any:
        if len(ids) <= LONG:
            return await quick_decode(ids, *args, **options)
        return await run_apart(lambda: renderer._decode(ids, *args, **options), WORKS_FOR.get())

    renderer._tokenize_prompt_async, renderer._async_tokenizer_decode = tokenize, decode
    renderer.render_messages_async = _rendering(renderer, run_apart)
    return renderer


def _rendering(renderer: Any, run_apart: Any) -> Callable[..., Awaitable[Any]]:
    read = renderer.render_messages_async

    async def render(messages: Sequence[Any], params: Any) -> Any:
        if len(messages) <= MANY or not all(map(_is_text, messages)):
            return await read(messages, params)
        return await run_apart(lambda: renderer.render_messages(messages, params), WORKS_FOR.get())

    return render


def _is_text(message: Any) -> bool:
    """Return whether a message has only text. vLLM loads images in parallel in the event loop."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        return all(isinstance(part, dict) and part.get("type") == "text" for part in content)
    return content is None or isinstance(content, str)


def check_tokens(tokenizer: Any, text: str, most: int) -> None:
    """Raise vLLM's error as soon as the beginning of ``text`` has more than ``most`` tokens."""
    count = 0
    for start in range(0, len(text), _PIECE):
        piece = tokenizer(text[start : start + _PIECE], add_special_tokens=False)
        # A cut may split a token, so the whole text may have this many tokens less.
        count += len(piece["input_ids"]) - tokenizer.max_chars_per_token
        if count > most:
            raise _too_long(most, f"at least {count} input tokens")


def _too_long(most: int, has: str) -> VLLMValidationError:
    return VLLMValidationError(
        f"This model's maximum context length is {most} tokens. However, your prompt contains "
        f"{has}. Please reduce the length of the input prompt.",
        parameter="input_text",
    )
