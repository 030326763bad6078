"""The first words of a program's input, by which people recognize the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrt.journal.analysis.rendering import short

_MOST = 80
"""Maximum length of the first words, in characters."""
_USERS = ("user", "human")
_REMINDER = "<system-reminder>"
"""The first characters of texts that coding agents add to the user's messages."""


def first_words(value: Any) -> str:
    """Return the first words of an input, "" if it has no text.

    For a list of messages, or an object with messages, these are the first words of the first item
    that is a text or a user message with a text; parts of a message that begin with `_REMINDER` do
    not count. For any other object, these are the first words of its first text field, and for a
    number its digits.
    """
    text = _text(value)
    return "" if text is None else short(text, _MOST)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, int | float):  # the whole input of a program, such as a number of steps
        return str(value)
    if isinstance(value, list):  # usual, and quicker to tell than an abstract class
        return _of_messages(value)
    if isinstance(value, Mapping):
        messages = value.get("messages")
        if isinstance(messages, Sequence) and not isinstance(messages, str):
            return _of_messages(messages)
        return next((v for v in value.values() if isinstance(v, str) and v.strip()), None)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _of_messages(value)
    fields = getattr(value, "__dict__", None)
    return _text(fields) if isinstance(fields, dict) and fields else None


def _of_messages(messages: Sequence[Any]) -> str | None:
    for message in messages:
        if isinstance(message, str):
            return message
        role, content = _message(message)
        text = _content(content)
        if role in _USERS and text:
            return text
    return None


def _message(message: Any) -> tuple[Any, Any]:
    """Return the role and the content of a message: an object of a chat API, a tuple, or a message
    of LangChain.
    """
    if isinstance(message, dict | Mapping):
        return message.get("role", message.get("type")), message.get("content")
    if isinstance(message, Sequence):
        return tuple(message) if len(message) == 2 else (None, None)
    return getattr(message, "type", None), getattr(message, "content", None)


def _content(content: Any) -> str:
    if isinstance(content, str):
        return "" if content.startswith(_REMINDER) else content.strip()
    if not isinstance(content, Sequence):
        return ""
    parts = [part.get("text", "") if isinstance(part, Mapping) else part for part in content]
    texts = [part for part in parts if isinstance(part, str) and not part.startswith(_REMINDER)]
    return " ".join(texts).strip()
