"""Recognise which earlier call a chat continues. If the client names no program, the chat belongs
to the program of this call.

Every chat has a chain of hashes. Each message has one hash, which covers all messages up to and
including this message. After a call, two hashes are stored: the hash of the call's chat, and the
hash of the chat with the reply. A later chat that begins with the same messages continues that
call. The number of stored hashes is bounded; the least recently used hashes are removed first.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST = 16_384
"""Maximum number of stored hashes of a tenant. A request with one choice stores two."""
_BYTES = 16


def chain(messages: Iterable[Mapping[str, Any]], before: bytes = b"") -> list[bytes]:
    """Return the hash after each message of a chat; ``before`` is the hash of the chat before these
    messages.
    """
    hashes: list[bytes] = []
    for message in messages:
        before = hashlib.blake2b(before + _canonical(message), digest_size=_BYTES).digest()
        hashes.append(before)
    return hashes


def _canonical(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message that stay the same when a client sends the message again.

    These are the role, the text and the tool calls, without the ids of tool calls and without the
    spacing of their arguments.
    """
    role, text, said = message["role"], message.get("content") or "", ""
    if tool_calls := message.get("tool_calls"):
        calls = [
            [call["function"]["name"], _arguments(call["function"]["arguments"])]
            for call in tool_calls
        ]
        said = json.dumps(calls, sort_keys=True)
    # The lengths separate role, text and calls; JSON would escape megabytes of text slowly.
    return f"{len(role)} {len(text)} {role}{text}{said}".encode("utf-8", "surrogatepass")


def _arguments(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


class Conversations(Generic[T]):
    """A store of values under the hashes of beginnings of chats. At most ``most`` values are
    stored; the least recently used values are removed first.
    """

    def __init__(self, most: int = MOST) -> None:
        self._left: OrderedDict[bytes, T] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._left)

    def find(self, hashes: Sequence[bytes]) -> T | None:
        """Return the value of the longest stored beginning of a chat, or None. ``hashes`` has a
        hash for each beginning (`chain`). The whole chat, with its last message, does not count as
        a beginning.
        """
        for at in reversed(hashes[:-1]):
            value = self._left.get(at)
            if value is not None:
                self._left.move_to_end(at)
                return value
        return None

    def leave(self, at: bytes, value: T) -> None:
        """Store ``value`` at the hash ``at``, in place of the value that was there."""
        self._left[at] = value
        self._left.move_to_end(at)
        if len(self._left) > self._most:
            self._left.popitem(last=False)

    def forget(self, at: bytes, value: T) -> None:
        """Remove the value at the hash ``at`` if it is ``value``."""
        if self._left.get(at) is value:
            del self._left[at]
