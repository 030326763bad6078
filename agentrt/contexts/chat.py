"""Chats in contexts: appending messages to tokens that were rendered earlier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from agentrt.contexts.emitter import Tokens
from agentrt.errors import ConfigError
from agentrt.request import Message
from agentrt.request.text import ReadsAsText, plain_message

Ids = tuple[int, ...]
Content = str | ReadsAsText | Iterable[int] | Iterable[Message]
"""The kinds of content for `TokenContext.fill`: text, an earlier reply, token ids, or chat messages
in OpenAI's form.
"""
_QUESTION: Message = {"role": "user", "content": "1"}
_ANSWERS = "one", "two"
"""Two different answers. Chats with them show which tokens a model's template adds after an answer.
"""


@dataclass(frozen=True, slots=True)
class Chat:
    """The state of a context as a chat.

    ``opened`` has the start and end position of the tokens that opened the model's last turn; None
    if no turn was opened.
    """

    opened: tuple[int, int] | None = None

    def truncated(self, length: int) -> Chat:
        """Return the state after the context was truncated to its first ``length`` tokens."""
        return Chat() if self.opened is not None and length < self.opened[1] else self

    async def extended(
        self, tokens: Tokens, model: str | None, ids: Ids, messages: Sequence[Any]
    ) -> tuple[Ids, Chat]:
        """Append ``messages`` to the tokens ``ids``, and open the model's turn.

        Returns all tokens and the new state. Raises `ConfigError` if the model's chat template
        cannot continue in the middle of a chat.
        """
        messages = [plain_message(each) if isinstance(each, Mapping) else each for each in messages]
        if not ids:
            closed = await _render(tokens, model, messages, answer=False)
            opened = await _render(tokens, model, messages, answer=True)
        else:
            start, end = self.opened or (0, 0)
            over: Ids = ()
            if end and end == len(ids):  # the turn has no text yet, and is opened again below
                ids = ids[:start]
            else:
                over = await _end_of_turn(tokens, model)
            before = await _render(tokens, model, _question_and(_ANSWERS[0]), answer=False)
            after = (*_question_and(_ANSWERS[0]), *messages)
            closed = await _render(tokens, model, after, answer=False)
            opened = await _render(tokens, model, after, answer=True)
            if opened[: len(before)] != before:
                raise ConfigError(
                    "this model's chat template does not allow messages to be appended to a "
                    "context that already has tokens; append a text instead"
                )
            head = (*ids, *over[_overlap(ids, over) :])
            closed, opened = ((*head, *each[len(before) :]) for each in (closed, opened))
        at = len(closed) if opened[: len(closed)] == closed else len(opened)
        return opened, Chat((at, len(opened)))


def _question_and(answer: str) -> tuple[Message, ...]:
    return _QUESTION, {"role": "assistant", "content": answer}


async def _end_of_turn(tokens: Tokens, model: str | None) -> Ids:
    """Return the tokens that the chat template adds after an answer: the common end of two chats
    with different answers.
    """
    first, second = [
        await _render(tokens, model, _question_and(answer), answer=False) for answer in _ANSWERS
    ]
    common = 0
    while common < min(len(first), len(second)) and first[-1 - common] == second[-1 - common]:
        common += 1
    return first[len(first) - common :]


def _overlap(ids: Ids, end: Ids) -> int:
    """Return how many of the first tokens of ``end`` are the last tokens of ``ids``. ``end`` has
    the tokens that the template adds after an answer; the model may have written some of them.
    """
    return next((n for n in range(len(end), 0, -1) if ids[-n:] == end[:n]), 0)


async def _render(
    tokens: Tokens, model: str | None, messages: Sequence[Any], *, answer: bool
) -> Ids:
    request = {"messages": list(messages), "model": model, "add_generation_prompt": answer}
    return tuple(await tokens.render({n: v for n, v in request.items() if v is not None}))


def is_messages(content: Content) -> TypeGuard[Sequence[Message]]:
    """Return whether ``content`` is a list of chat messages."""
    if isinstance(content, str | ReadsAsText):
        return False
    # A check of each value would block the event loop for 0.03 s for 100,000 token ids.
    return any(issubclass(kind, Mapping) for kind in set(map(type, content)))
