"""Values that stand for their text wherever a prompt is put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


class ReadsAsText:
    """A value with a ``text``, which is all that a prompt shows of it.

    ``str(reply)``, ``f"{reply}"`` and ``f"{reply:>20}"`` are the text. In ``f"{[reply, other]}"``
    each item is its text in quotes, as the strings of a list are. A subclass that is a dataclass
    is made with ``repr=False``. `to_dict` has all fields.
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
        """Return all fields by name, to look at: ``repr()`` shows only the text."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a chat message in which a reply that is its content has become text."""
    content = message.get("content")
    text = {"content": content.text} if isinstance(content, ReadsAsText) else {}
    return {**message, **text}
