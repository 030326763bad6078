"""Chats in contexts: messages that go on from tokens which were not rendered together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from agentrt.contexts.emitter import Tokens
from agentrt.errors import ConfigError
from agentrt.request import Message
from agentrt.request.text import ReadsAsText, plain_message

Ids = tuple[int, ...]
Content = str | ReadsAsText | Sequence[int] | Sequence[Message]
"""What a context is filled with: text or an earlier reply, token ids, or chat messages in OpenAI's
form.
"""
_ASKED: Message = {"role": "user", "content": "1"}
_SAID = "one", "two"
"""A chat to see by what a model's template puts after an answer, whatever it was."""


@dataclass(frozen=True, slots=True)
class Chat:
    """How far a context is a chat: ``opened`` is where the model's turn was opened, from token to
    token; None where it was not.
    """

    opened: tuple[int, int] | None = None

    async def extended(
        self, tokens: Tokens, model: str | None, ids: Ids, messages: Sequence[Any]
    ) -> tuple[Ids, Chat]:
        """The tokens with ``messages`` after them, and the model's turn opened."""
        messages = [plain_message(each) if isinstance(each, Mapping) else each for each in messages]
        if not ids:
            closed = await _render(tokens, model, messages, answer=False)
            opened = await _render(tokens, model, messages, answer=True)
        else:
            start, end = self.opened or (0, 0)
            over: Ids = ()
            if end and end == len(ids):  # nothing was said: the turn is opened again below
                ids = ids[:start]
            else:
                over = await _end_of_turn(tokens, model)
            before = await _render(tokens, model, _story(_SAID[0]), answer=False)
            after = (*_story(_SAID[0]), *messages)
            closed = await _render(tokens, model, after, answer=False)
            opened = await _render(tokens, model, after, answer=True)
            if opened[: len(before)] != before:
                raise ConfigError(
                    "this model's chat template cannot go on from the middle of a chat: fill the "
                    "context with text"
                )
            head = (*ids, *over[_overlap(ids, over) :])
            closed, opened = ((*head, *each[len(before) :]) for each in (closed, opened))
        at = len(closed) if opened[: len(closed)] == closed else len(opened)
        return opened, Chat((at, len(opened)))


def _story(said: str) -> tuple[Message, ...]:
    return _ASKED, {"role": "assistant", "content": said}


async def _end_of_turn(tokens: Tokens, model: str | None) -> Ids:
    """What the template puts after an answer: what two chats with other answers end with."""
    one, two = [await _render(tokens, model, _story(said), answer=False) for said in _SAID]
    common = 0
    while common < min(len(one), len(two)) and one[-1 - common] == two[-1 - common]:
        common += 1
    return one[len(one) - common :]


def _overlap(ids: Ids, end: Ids) -> int:
    """How much of the turn's end the model has written itself."""
    return next((n for n in range(len(end), 0, -1) if ids[-n:] == end[:n]), 0)


async def _render(
    tokens: Tokens, model: str | None, messages: Sequence[Any], *, answer: bool
) -> Ids:
    request = {"messages": list(messages), "model": model, "add_generation_prompt": answer}
    return tuple(await tokens.render({n: v for n, v in request.items() if v is not None}))


def is_messages(content: Content) -> TypeGuard[Sequence[Message]]:
    """Whether it is a chat."""
    if isinstance(content, str | ReadsAsText):
        return False
    return any(isinstance(each, Mapping) for each in content)
