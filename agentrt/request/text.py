"""Values that are replaced by their text when they are put into a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


class ReadsAsText:
    """A value that is replaced by its ``text`` in a prompt.

    ``str(reply)``, ``f"{reply}"`` and ``f"{reply:>20}"`` give the text. In ``f"{[reply, other]}"``
    each item gives its text in quotes, like the strings of a list. A subclass that is a dataclass
    must set ``repr=False``. `to_dict` returns all fields.
    """

    __slots__ = ()
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return repr(self.text)

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, because ``repr()`` shows only the text."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a chat message. If the message's content is a reply, the content of the copy
    is the reply's text.
    """
    content = message.get("content")
    text = {"content": content.text} if isinstance(content, ReadsAsText) else {}
    return {**message, **text}
