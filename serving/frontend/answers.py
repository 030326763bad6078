"""What an answer says: each choice's messages, by which its chat goes on.

Whole answers and the events of streams, in the three APIs. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import DecodeError, Struct
from msgspec.json import Decoder
from pydantic_core import from_json

from agentrt.serving.frontend.conversations import (
    MESSAGES,
    RESPONSES,
    Message,
    blocks_message,
    chat_message,
    items,
)

_DATA = re.compile(rb"^data: (\{.*)", re.MULTILINE)
_LAST = tuple(b"event: response." + end for end in (b"completed", b"incomplete", b"failed"))
ENDS_CHOICE, ENDS_SPACED = b'_reason":"', b'_reason": "'


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int = 0
    function: _Function | None = None


class _Delta(Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(Struct):
    """What is read of an event: the rest of it costs nothing so."""

    choices: list[_Choice] | None = None


_CHUNKS = Decoder(list[_Chunk])


class Answer:
    """Reads an answer of ``path`` to a request for ``choices``.

    ``replies`` has each choice's messages; ``id`` is the response's own name in the Responses
    API. An answer ``is_over`` when all choices have come to their end. ``unread`` are events before
    that.
    """

    def __init__(self, path: str, choices: int) -> None:
        self._path = path
        self._choices = choices
        self.unread: list[bytes] = []
        self._parts: dict[int, _Parts] = defaultdict(_Parts)
        self._ended: set[int] = set()
        self.id = ""
        self.is_over = False
        self.replies: list[list[Message]] = []

    def read(self, body: bytes) -> None:
        """A whole answer."""
        whole = _json(body)
        if self._path == RESPONSES:
            self._response(whole)
        elif self._path == MESSAGES:
            self.replies = [[blocks_message(whole.get("content"))]]
        else:
            chosen = [one.get("message") for one in whole.get("choices") or ()]
            self.replies = [[chat_message(one)] for one in chosen if one]
        self.is_over = True

    def feed(self, events: bytes) -> None:
        """The next whole events of a stream. They are read at a choice's end, all at once: that is
        much less work than one by one.
        """
        if self._path == RESPONSES:
            # All its events but the last are pieces of what that has whole.
            self.is_over |= events.startswith(_LAST)
            if self.is_over or not self.id:
                for data in _DATA.findall(events):
                    self._response(_json(data).get("response") or {})
            return
        self.unread.append(events)
        if ENDS_CHOICE in events or ENDS_SPACED in events:
            self._read_events()

    def _read_events(self) -> None:
        data = b",".join(_DATA.findall(b"".join(self.unread)))
        self.unread.clear()
        if self._path == MESSAGES:
            for event in _json(b'{"events":[%b]}' % data).get("events") or ():
                self._block(event)
            return
        with suppress(DecodeError):
            for chunk in _CHUNKS.decode(b"[%b]" % data):
                for choice in chunk.choices or ():
                    self._choice(choice)

    def _response(self, response: Mapping[str, Any]) -> None:
        self.id = str(response.get("id") or "")
        self.replies = [list(items(response.get("output")))]

    def _choice(self, choice: _Choice) -> None:
        parts = self._parts[choice.index]
        if choice.delta is not None:
            parts.text.append(choice.delta.content or "")
            for call in choice.delta.tool_calls or ():
                function = call.function or _Function()
                parts.add(call.index, function.name, function.arguments)
        if choice.finish_reason:
            self._end(choice.index)

    def _block(self, event: Mapping[str, Any]) -> None:
        kind, index, parts = event.get("type"), event.get("index", 0), self._parts[0]
        if kind == "content_block_start":
            block = event.get("content_block") or {}
            if block.get("type") == "tool_use":
                parts.add(index, block.get("name"), None)
        elif kind == "content_block_delta":
            delta = event.get("delta") or {}
            parts.text.append(delta.get("text") or "")
            if "partial_json" in delta:
                parts.add(index, None, delta["partial_json"])
        elif kind == "message_delta" and (event.get("delta") or {}).get("stop_reason"):
            self._end(0)

    def _end(self, choice: int) -> None:
        self._ended.add(choice)
        if len(self._ended) == self._choices:
            self.replies = [[self._parts[index].message()] for index in sorted(self._ended)]
            self.is_over = True


class _Parts:
    """The pieces of one choice."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._calls: dict[int, list[str]] = {}

    def add(self, index: int, name: str | None, arguments: str | None) -> None:
        call = self._calls.setdefault(index, ["", ""])
        call[0] += name or ""
        call[1] += arguments or ""

    def message(self) -> Message:
        calls = [
            {"function": {"name": name, "arguments": arguments}}
            for _, (name, arguments) in sorted(self._calls.items())
        ]
        return chat_message(
            {"role": "assistant", "content": "".join(self.text), "tool_calls": calls}
        )


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = from_json(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
