"""The results of a reply's tool calls, and the messages that pass them to the model.

A result may have parts other than text: images, sounds, files. The model gets the parts that it
supports. All other parts are replaced by a description in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrt.errors import text_of
from agentrt.request import Message, ToolCall

Part = Mapping[str, Any]
Takes = Mapping[str, bool]
"""The types of parts, other than text, that a model supports, such as ``image_url``. The value of a
type is True if a tool's message may contain such parts, and False if only a user's message may.
"""
_WORDS = {"image_url": ("image", "see"), "input_audio": ("sound", "hear"), "file": ("file", "read")}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call: a ``value``, or the ``error`` that the tool raised.

    A value may be a list of message parts in OpenAI's form. ``takes`` says which types of parts the
    model supports.
    """

    call: ToolCall
    value: Any = None
    error: Exception | None = None
    takes: Takes = field(default_factory=dict)

    @property
    def message(self) -> Message:
        """The message that passes the result, or the error, to the model."""
        return {"role": "tool", "tool_call_id": self.call.id, "content": self._content()}

    @property
    def has_media(self) -> bool:
        """Whether the value has parts other than text."""
        return any(part["type"] != "text" for part in _parts_of(self.value))

    @property
    def shown_apart(self) -> list[Part]:
        """The parts that the model supports in a user's message only, after a line of text that
        names the tool; an empty list if there are no such parts.
        """
        apart = [part for part in _parts_of(self.value) if self.takes.get(part["type"]) is False]
        if not apart:
            return []
        return [{"type": "text", "text": f"From the result of {self.call.name}:"}, *apart]

    def _content(self) -> str | list[Part]:
        if self.error is not None:
            return f"Error: {type(self.error).__name__}: {text_of(self.error)}"
        if isinstance(self.value, str):
            return self.value
        if not (parts := _parts_of(self.value)):
            try:
                return json.dumps(self.value, ensure_ascii=False, default=str)
            except (TypeError, ValueError, RecursionError):
                # A key is not a text, or the value contains itself.
                return str(self.value)
        shown = [part if self.takes.get(part["type"]) else self._in_words(part) for part in parts]
        if all(part["type"] == "text" for part in shown):
            return "\n".join(part["text"] for part in shown)
        return shown

    def _in_words(self, part: Part) -> Part:
        """Return a text part that describes ``part``. A text part is returned unchanged."""
        kind: str = part["type"]
        if kind == "text":
            return part
        noun, verb = _WORDS[kind]
        where = (
            " in the next message" if kind in self.takes else f", which this model cannot {verb}"
        )
        return {"type": "text", "text": f"[{noun} ({_described(part)}){where}]"}


def messages_of(results: Iterable[ToolResult]) -> list[Message]:
    """Return the messages of results: one message for each tool call, and, if needed, a user's
    message with the parts that tools' messages must not contain.
    """
    ordered = list(results)
    apart = [part for result in ordered for part in result.shown_apart]
    shown: list[Message] = [{"role": "user", "content": apart}] if apart else []
    return [*(result.message for result in ordered), *shown]


def _parts_of(value: Any) -> list[Part]:
    """Return ``value`` if it is a list of message parts; otherwise return an empty list."""
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
    """Return the file name, the media type (or the URL) and the size of a part that is not text,
    separated by commas. Values that are unknown are left out.
    """
    fields = part[part["type"]]
    name, url = fields.get("filename", ""), str(fields.get("url") or fields.get("file_data") or "")
    mime, data = f"audio/{fields.get('format', '')}".rstrip("/"), fields.get("data", "")
    if part["type"] != "input_audio":
        head, _, data = url.partition(";base64,")
        mime = head.removeprefix("data:") if data else url
    size = f"{len(data) * 3 // 4 - data[-2:].count('=')} bytes" if data else ""
    return ", ".join(filter(None, (name, mime, size)))
