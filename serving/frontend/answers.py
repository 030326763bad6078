"""Reads the messages of each choice from an answer, whole or streamed, in the three APIs: pure.

A request of a client continues a conversation when it begins with these messages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

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


class AnswerReader:
    """Reads an answer of ``path`` to a request for ``choices``.

    ``replies`` has each choice's messages; ``id`` is the response's own name in the Responses
    API. An answer ``is_over`` when all choices have come to their end.
    """

    def __init__(self, path: str, choices: int) -> None:
        self._path = path
        self._choices = choices
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
        """The next whole events of a stream."""
        if self._path == RESPONSES:
            self.is_over |= events.startswith(_LAST)
            if self.id and not self.is_over:
                return  # the last event has all that is between
        for data in _DATA.findall(events):
            self._read_event(_json(data))

    def _read_event(self, event: Mapping[str, Any]) -> None:
        if self._path == RESPONSES:
            self._response(event.get("response") or {})
        elif self._path == MESSAGES:
            self._block(event)
        else:
            for choice in event.get("choices") or ():
                self._choice(choice)

    def _response(self, response: Mapping[str, Any]) -> None:
        self.id = str(response.get("id") or "")
        self.replies = [list(items(response.get("output")))]

    def _choice(self, choice: Mapping[str, Any]) -> None:
        index, delta = choice.get("index", 0), choice.get("delta") or {}
        parts = self._parts[index]
        parts.text.append(delta.get("content") or "")
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            parts.add(call.get("index", 0), function.get("name"), function.get("arguments"))
        if choice.get("finish_reason"):
            self._end(index)

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
