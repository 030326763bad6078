"""Read the conversation of a request, and the continuation of the conversation in the answer, for
chat completions, Messages and Responses. This module does no I/O.

All three formats become messages with a role, text and tool calls, which
`agentrt.serving.programs.conversation` hashes. A client sends earlier answers back in its next
request, so requests and answers are read in the same way. The bodies are not validated yet; values
of a wrong type are skipped.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"

Message = dict[str, Any]
_TEXTS = ("text", "input_text", "output_text", "refusal")
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
_BILLING = "x-anthropic-billing-header"
"""The beginning of a block that Claude Code puts before its system prompt. The block changes with
each request, so it is not hashed.
"""
_CHANGING = ("cache_control", "id", "status")


def conversation(path: str, body: Mapping[str, Any]) -> list[Message]:
    """Return the messages of a request, or an empty list for an API without conversations."""
    if path == MESSAGES:
        return [*_system(body.get("system")), *map(_blocks, _objects(body.get("messages")))]
    if path == RESPONSES:
        return [*_system(body.get("instructions")), *items(body.get("input"))]
    return list(map(chat_message, _objects(body.get("messages")))) if path == CHAT else []


def chat_message(message: Mapping[str, Any]) -> Message:
    """Convert a message of OpenAI's chat completions to a `Message`."""
    content = message.get("content")
    if isinstance(content, str) and not message.get("tool_calls"):  # usual
        return {"role": str(message.get("role")), "content": content.strip(), "tool_calls": []}
    calls = [
        _call(function.get("name"), function.get("arguments"))
        for call in _objects(message.get("tool_calls"))
        if isinstance(function := call.get("function"), dict)
    ]
    return _message(message.get("role"), _text(content), calls)


def blocks_message(content: Any) -> Message:
    """Convert the content blocks of an answer of Anthropic's API to a `Message`."""
    return _blocks({"role": "assistant", "content": content})


def items(value: Any) -> Iterator[Message]:
    """Convert items of the Responses API, from an input or an output, to messages."""
    if isinstance(value, str):
        yield _message("user", value)
    for item in _objects(value):
        kind = str(item.get("type") or "message")
        if kind == "message":
            yield _message(item.get("role"), _text(item.get("content")))
        elif kind.endswith("_call"):
            yield _message(
                "assistant", "", [_call(item.get("name"), item.get("arguments", item.get("input")))]
            )
        elif kind.endswith("_output"):
            yield _message("tool", _text(item.get("output")))
        elif kind == "compaction":
            yield _message(kind, _text(item.get("encrypted_content")))
        elif kind not in _THOUGHTS:
            yield _message(kind, _dump(item))


def tools_of(messages: Sequence[Message]) -> list[str]:
    """Return the names of the tools that messages call."""
    return [call["function"]["name"] for message in messages for call in message["tool_calls"]]


def _system(prompt: Any) -> list[Message]:
    if isinstance(prompt, list):
        prompt = [b for b in _objects(prompt) if not str(b.get("text", "")).startswith(_BILLING)]
    return [_message("system", _text(prompt))] if prompt else []


def _blocks(message: Mapping[str, Any]) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return _message(message.get("role"), _text(content))
    blocks = [b for b in _objects(content) if not _is_aside(b)]
    calls = [_call(b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use"]
    rest = [b for b in blocks if b.get("type") != "tool_use"]
    return _message(message.get("role"), _text(rest), calls)


def _is_aside(block: Mapping[str, Any]) -> bool:
    """Return whether a block is left out of the hash: thinking, and tools that a server ran.

    Such tools are left out because the result of the same tool may have another form on another
    server.
    """
    kind = str(block.get("type"))
    is_result = kind.endswith("_tool_result")
    return kind in _THOUGHTS or kind in ("server_tool_use", "mcp_tool_use") or is_result


def _message(role: Any, content: str, calls: Sequence[Message] = ()) -> Message:
    return {"role": str(role), "content": content.strip(), "tool_calls": list(calls)}


def _call(name: Any, arguments: Any) -> Message:
    return {"function": {"name": str(name or ""), "arguments": arguments or "{}"}}


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(map(_part, content)) if isinstance(content, list) else _dump(content)


def _part(part: Any) -> str:
    if isinstance(part, dict):
        kind = part.get("type")
        if kind in _TEXTS:
            return str(part.get("refusal" if kind == "refusal" else "text", ""))
        if kind == "tool_result":
            return _text(part.get("content"))
    return _dump(part)


def _dump(value: Any) -> str:
    if isinstance(value, dict):
        value = {name: field for name, field in value.items() if name not in _CHANGING}
    return json.dumps(value, sort_keys=True)


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


# -- answers: a later request continues a conversation if it begins with these messages


_EVENTS = re.compile(
    rb'^data: (?:\{.*?"choices":\[\{"index":0,"delta":\{"content":("(?:[^"\\]|\\.)*+")\},'
    rb'"logprobs":null,"finish_reason":null(?:,"\w+":null)*\}\].*|(\{.*))',
    re.MULTILINE,
)
"""An event of a stream: as its text alone if it is a piece of the text of the only choice, as most
events are, and otherwise whole.
"""
_ENDS = {MESSAGES: b'"stop_reason":"', RESPONSES: b""}
_AUDIO = "/v1/audio/"
"""The paths whose answers are no messages of a chat. Their streams end each part of the audio as
other streams end a choice.
"""
_END = b'"finish_reason":"'
_LAST = re.compile(rb"^event: response\.(?:completed|incomplete|failed)\b", re.MULTILINE)


class AnswerReader:
    """A parser of the answer at ``path`` to a request with ``choices`` choices.

    ``replies`` has the messages of each choice. In the Responses API, ``id`` is the response's id,
    and ``response`` its JSON. ``is_over`` is True when all choices have ended. The stream event
    that ends a choice has the bytes ``end``, so the caller may collect events without these bytes
    and feed many events at once, which costs less.
    """

    def __init__(self, path: str, choices: int) -> None:
        self._path = path
        self._choices = choices
        self._parts: dict[int, _Parts] = defaultdict(_Parts)
        self._ended: set[int] = set()
        self.end = _ENDS.get(path, _END)
        self.id = ""
        self.response: Mapping[str, Any] = {}
        self.is_over = False
        self.replies: list[list[Message]] = []

    def read(self, body: bytes) -> None:
        """Parse an answer that is not a stream."""
        whole = _json(body)
        if self._path == RESPONSES:
            self._response(whole)
        elif self._path == MESSAGES:
            self.replies = [[blocks_message(whole.get("content"))]]
        else:
            chosen = [choice.get("message") for choice in whole.get("choices") or ()]
            self.replies = [[chat_message(message)] for message in chosen if message]
        self.is_over = True

    def feed(self, events: bytes) -> None:
        """Parse the next complete events of a stream."""
        if self._path.startswith(_AUDIO):
            return
        if self._path == RESPONSES:
            self.is_over |= _LAST.search(events) is not None
            if self.id and not self.is_over:
                return  # the last event repeats the content of all events before it
        payloads = b",".join([text or event for text, event in _EVENTS.findall(events)])
        read = _json(b'{"events":[%b]}' % payloads).get("events", [])
        # Most events are a text, and are read without a function for each of them.
        start = 0
        for at in [at for at, event in enumerate(read) if event.__class__ is not str]:
            if start < at:
                self._parts[0].text += read[start:at]
            self._event(read[at])
            start = at + 1
        if start < len(read):
            self._parts[0].text += read[start:]

    def _event(self, event: Mapping[str, Any]) -> None:
        if self._path == RESPONSES:
            self._response(event.get("response") or {})
        elif self._path == MESSAGES:
            self._block(event)
        elif "choices" in event:
            for choice in event["choices"]:
                self._choice(choice)

    def _response(self, response: Mapping[str, Any]) -> None:
        self.response = response
        self.id = str(response.get("id") or "")
        self.replies = [list(items(response.get("output")))]

    def _choice(self, choice: Mapping[str, Any]) -> None:
        parts = self._parts[choice["index"]]
        if "delta" in choice:
            delta = choice["delta"]
            if "content" in delta:
                parts.text.append(delta["content"] or "")
            if "tool_calls" in delta:
                for call in delta["tool_calls"] or ():
                    function = call.get("function") or {}
                    parts.add(call["index"], function.get("name"), function.get("arguments"))
        if choice["finish_reason"]:
            self._end(choice["index"])

    def _block(self, event: Mapping[str, Any]) -> None:
        kind, index, parts = event.get("type"), event.get("index", 0), self._parts[0]
        if kind == "content_block_start":
            block = event.get("content_block") or {}
            if block.get("type") == "tool_use":
                parts.add(index, block.get("name"), None)
            elif block.get("type") == "text" and parts.text:
                parts.text.append("\n")  # `_text` joins the blocks of a request in the same way
        elif kind == "content_block_delta":
            delta = event.get("delta") or {}
            parts.text.append(delta.get("text") or "")
            if "partial_json" in delta and parts.has(index):  # calls of server tools are skipped
                parts.add(index, None, delta["partial_json"])
        elif kind == "message_delta" and (event.get("delta") or {}).get("stop_reason"):
            self._end(0)

    def _end(self, choice: int) -> None:
        self._ended.add(choice)
        if len(self._ended) == self._choices:
            self.replies = [[self._parts[index].message()] for index in sorted(self._ended)]
            self.is_over = True


class _Parts:
    """The text and the tool calls of one choice, collected from a stream."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self._calls: dict[int, tuple[list[str], list[str]]] = {}

    def add(self, index: int, name: str | None, arguments: str | None) -> None:
        """Add a piece of a call's name and arguments."""
        names, pieces = self._calls.setdefault(index, ([], []))
        names.append(name or "")
        pieces.append(arguments or "")

    def has(self, index: int) -> bool:
        """Return whether the block at ``index`` is a tool call."""
        return index in self._calls

    def message(self) -> Message:
        calls = [
            {"function": {"name": "".join(names), "arguments": "".join(pieces)}}
            for _, (names, pieces) in sorted(self._calls.items())
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
