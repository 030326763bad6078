"""What the tool calls of a reply came to, as the messages with which the chat goes on.

A result may have parts that are no text: images, sounds, files. A model gets those that it takes,
and reads a description of the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt.request import Message, ToolCall

Part = Mapping[str, Any]
Takes = Mapping[str, bool]
"""The types of parts that a model takes beside text, such as ``image_url``; and whether a tool's
message may have them, or only a user's.
"""
_WORDS = {"image_url": ("image", "see"), "input_audio": ("sound", "hear"), "file": ("file", "read")}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one of a reply's tool calls came to: a ``value``, or the ``error`` that it raised.

    A value may be a list of message parts as in OpenAI's API; ``takes`` is what the model takes
    of them.
    """

    call: ToolCall
    value: Any = None
    error: Exception | None = None
    takes: Takes = field(default_factory=dict)

    @property
    def message(self) -> Message:
        """For the chat that goes on. The model reads of an error, too."""
        return {"role": "tool", "tool_call_id": self.call.id, "content": self._content()}

    @property
    def has_media(self) -> bool:
        """Whether the value has parts that are no text."""
        return any(part["type"] != "text" for part in _parts_of(self.value))

    @property
    def shown_apart(self) -> list[Part]:
        """Parts for a user's message: what the model takes, but not in a tool's."""
        apart = [part for part in _parts_of(self.value) if self.takes.get(part["type"]) is False]
        if not apart:
            return []
        return [{"type": "text", "text": f"From the result of {self.call.name}:"}, *apart]

    def _content(self) -> str | list[Part]:
        if self.error is not None:
            return f"Error: {type(self.error).__name__}: {self.error}"
        if isinstance(self.value, str):
            return self.value
        if not (parts := _parts_of(self.value)):
            return json.dumps(self.value, ensure_ascii=False, default=str)
        shown = [part if self.takes.get(part["type"]) else self._in_words(part) for part in parts]
        if all(part["type"] == "text" for part in shown):
            return "\n".join(part["text"] for part in shown)
        return shown

    def _in_words(self, part: Part) -> Part:
        """A part in words, unless it is text already."""
        kind: str = part["type"]
        if kind == "text":
            return part
        noun, verb = _WORDS[kind]
        where = (
            " in the next message" if kind in self.takes else f", which this model cannot {verb}"
        )
        return {"type": "text", "text": f"[{noun} ({_described(part)}){where}]"}


def messages_of(results: Iterable[ToolResult]) -> list[Message]:
    """The messages of a reply's results: those of the tools, and then what they cannot have."""
    given = list(results)
    apart = [part for result in given for part in result.shown_apart]
    shown: list[Message] = [{"role": "user", "content": apart}] if apart else []
    return [*(result.message for result in given), *shown]


def _parts_of(value: Any) -> list[Part]:
    """The parts that a value is a list of; none, if it is anything else."""
    parts = value if isinstance(value, list) else []
    return parts if all(map(_is_part, parts)) else []


def _is_part(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    if kind == "text":
        return isinstance(value.get("text"), str)
    return kind in _WORDS and isinstance(value.get(kind), Mapping)


def _described(part: Part) -> str:
    """What a part is, in words: its name, its type, its size."""
    given = part[part["type"]]
    name, url = given.get("filename", ""), str(given.get("url") or given.get("file_data") or "")
    mime, data = f"audio/{given.get('format', '')}".rstrip("/"), given.get("data", "")
    if part["type"] != "input_audio":
        head, _, data = url.partition(";base64,")
        mime = head.removeprefix("data:") if data else url
    size = f"{len(data) * 3 // 4 - data[-2:].count('=')} bytes" if data else ""
    return ", ".join(filter(None, (name, mime, size)))
