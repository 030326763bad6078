"""Which earlier call a chat goes on from: found by the chat itself, for clients that say nothing.

Every chat is a chain of hashes, one for each message, each over all messages up to it. A call
leaves the hash of its chat, and of its chat with the reply; a later chat that begins with either
goes on from there. Bounded: the longest unused are forgotten. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 16_384
"""So many beginnings of chats are remembered: two for each call."""
_BYTES = 16


def chain(messages: Iterable[Mapping[str, Any]], before: bytes = b"") -> list[bytes]:
    """The hashes of a chat's beginnings, the shortest first."""
    hashes: list[bytes] = []
    for message in messages:
        before = hashlib.blake2b(before + _canonical(message), digest_size=_BYTES).digest()
        hashes.append(before)
    return hashes


def _canonical(message: Mapping[str, Any]) -> bytes:
    """What of a message stays the same when a client sends it again: role, text, tool calls.

    Ids of tool calls do not count, nor how arguments are spaced.
    """
    role, text = message["role"], message.get("content") or ""
    calls = [
        [call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    said = json.dumps(calls, sort_keys=True) if calls else ""
    # The lengths say where each ends. A chat may be megabytes of text, which JSON would escape.
    return f"{len(role)} {len(text)} {role}{text}{said}".encode("utf-8", "surrogatepass")


def _arguments(given: Any) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given


class Conversations(Generic[T]):
    """What was left at the beginnings of chats, each known by its hash."""

    def __init__(self, most: int = MOST) -> None:
        self._left: OrderedDict[bytes, T] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._left)

    def find(self, hashes: Sequence[bytes]) -> T | None:
        """What was left at the longest beginning of a chat that is shorter than all of it."""
        for at in reversed(hashes[:-1]):
            found = self._left.get(at)
            if found is not None:
                self._left.move_to_end(at)
                return found
        return None

    def leave(self, at: bytes, what: T) -> None:
        """Leave ``what`` at a beginning, instead of what was there."""
        self._left[at] = what
        self._left.move_to_end(at)
        if len(self._left) > self._most:
            self._left.popitem(last=False)

    def forget(self, at: bytes, what: T) -> None:
        """Nothing is left at a beginning any more, if ``what`` was."""
        if self._left.get(at) is what:
            del self._left[at]
