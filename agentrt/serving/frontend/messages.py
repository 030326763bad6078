"""Convert requests of Anthropic's Messages API into requests that vLLM's front end accepts.

Clients of that API send blocks and tools that Anthropic's own servers know, and the history has the
results of those servers. vLLM knows some of these blocks, and refuses a request that has any other
block. Here every such block that a model can read becomes text, or a tool call with its result.
Blocks that this server cannot use are left out, and their types are named in the answer. Malformed
values stay as they are, for vLLM to refuse. This module does no I/O.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from agentrt.serving.frontend.anthropic_tools import GONE, Tools, read_tools
from agentrt.serving.frontend.left_out import LeftOut

Block = Mapping[str, Any]

_CALLS = frozenset(["server_tool_use", "mcp_tool_use"])
"""Types of calls that a server ran. A result is in the same message as its call."""
_RESULT = "tool_result"
"""The suffix of the type of each result, such as ``web_search_tool_result``."""
_CHANGES = frozenset(["tool_addition", "tool_removal"])
_NOT_SHOWN = frozenset(["fallback", "mcp_tool_listing"])
"""Blocks that Anthropic's servers do not show to the model either."""
_AS_TEXT = frozenset(["search_result", "browser_state"])
_PLAIN = {
    "user": frozenset(["text", "tool_result", "tool_reference"]),
    "assistant": frozenset(["text", "thinking", "redacted_thinking", "tool_use", "tool_reference"]),
    "system": frozenset(["text"]),
}
"""Types of blocks that vLLM accepts unchanged, by the role of their message."""
_THINKING = frozenset(["enabled", "disabled", "adaptive"])
_EFFORTS = frozenset(["low", "medium", "high", "xhigh", "max"])
_FIELDS = ("mcp_servers", "container", "context_management", "compaction", "fallbacks", "thread")
"""Fields that ask for features that this server does not have."""
_SUMMARY = "The conversation before this was compacted. This is its summary:\n\n"
_OWN = "agentrt:"
"""The prefix of this server's texts in fields that are opaque to clients."""


@dataclass(frozen=True, slots=True)
class ConvertedRequest:
    """A Messages request in a form that vLLM accepts.

    ``left_out`` has the types of the parts that were removed. ``served`` has the tools that this
    server runs itself: their names in the request, and Anthropic's kind of each.
    """

    body: Mapping[str, Any]
    left_out: LeftOut = field(default_factory=LeftOut)
    served: Mapping[str, str] = field(default_factory=dict)


def read_request(
    body: Mapping[str, Any],
    *,
    takes_images: Callable[[], bool] = lambda: True,
    offered: Mapping[str, Mapping[str, Any]] | None = None,
) -> ConvertedRequest:
    """Return a request to ``/v1/messages`` in a form that vLLM accepts.

    ``takes_images`` says whether the model accepts images. ``offered`` has this server's
    replacements for Anthropic's server tools, as ordinary tools, by kind (such as ``web_search``).
    """
    changed: dict[str, Any] = {}
    left_out = LeftOut()
    tools = read_tools(body, offered or {}, left_out.add)
    changed.update(tools.changed)
    chat = _ChatConverter(left_out, takes_images, offered or {}, tools)
    messages = body.get("messages")
    if isinstance(messages, list):
        read = chat.read(messages)
        if read is not messages:
            changed["messages"] = read
    system = body.get("system")
    if isinstance(system, list) and not all(map(_is_text, system)):
        changed["system"] = chat.system(system)
    changed.update(_settings(body, left_out))
    if not changed:
        return ConvertedRequest(body, left_out, tools.served)
    whole = {name: value for name, value in {**body, **changed}.items() if value is not GONE}
    return ConvertedRequest(whole, left_out, tools.served)


def _settings(body: Mapping[str, Any], left_out: LeftOut) -> dict[str, Any]:
    """Return the new values of the changed fields other than the chat and the tools."""
    changed: dict[str, Any] = {}
    thinking = body.get("thinking")
    if isinstance(thinking, dict):
        kind, display = thinking.get("type"), thinking.get("display")
        if isinstance(kind, str) and kind not in _THINKING:
            left_out.add(f"thinking:{kind}")
            changed["thinking"] = {"type": "adaptive"}
        elif display not in (None, "summarized", "omitted", "updates"):
            changed["thinking"] = {n: v for n, v in thinking.items() if n != "display"}
    output = body.get("output_config")
    if isinstance(output, dict):
        effort, form = output.get("effort"), output.get("format")
        dropped = []
        if isinstance(effort, str) and effort not in _EFFORTS:
            left_out.add(f"effort:{effort}")
            dropped.append("effort")
        if isinstance(form, dict) and form.get("type", "json_schema") != "json_schema":
            left_out.add(f"format:{form['type']}")
            dropped.append("format")
        if dropped:
            changed["output_config"] = {n: v for n, v in output.items() if n not in dropped}
    for name in _FIELDS:
        if name in body and _asks_for_something(body[name]):
            left_out.add(name)
    return changed


def _asks_for_something(value: Any) -> bool:
    if isinstance(value, dict) and "edits" in value:
        return bool(value["edits"])
    return bool(value)


# -- the chat ------------------------------------------------------------------------------


class _ChatConverter:
    """A converter of the messages of one request."""

    def __init__(
        self,
        left_out: LeftOut,
        takes_images: Callable[[], bool],
        offered: Mapping[str, Mapping[str, Any]],
        tools: Tools,
    ) -> None:
        self._left_out = left_out
        self._takes_images = takes_images
        self._offered = offered
        self._tools = tools
        self._answered: set[str] = set()
        self._calls: set[str] = set()
        self._summary: Block | None = None

    def read(self, messages: list[Any]) -> list[Any]:
        """Return the messages in a form that vLLM accepts, or the same list if all are accepted."""
        if all(map(self._is_plain, messages)):
            return messages
        blocks = [block for message in messages for block in _blocks_of(message)]
        self._answered = {str(b.get("tool_use_id")) for b in blocks if _is_result(b)}
        chat: list[Any] = []
        for message in _from_compaction(messages):
            if not isinstance(message, dict) or self._is_plain(message):
                self._append(chat, message)
            else:
                for part in self._message(message):
                    self._append(chat, part)
        if self._summary is not None:
            self._append(chat, {"role": "user", "content": []})
        if chat and all(isinstance(m, dict) and m.get("role") == "system" for m in chat):
            chat.append({"role": "user", "content": ""})  # no template renders a chat without turns
        return chat

    def system(self, blocks: Sequence[Any]) -> list[Any]:
        """Convert the blocks of a system prompt to content parts that vLLM accepts."""
        parts = [part for block in map(_block, blocks) for part in self._system_block(block)]
        for part in parts:
            if part.get("type") in _CHANGES:  # tool changes are allowed in the chat only
                self._left_out.add(part["type"])
        return [part for part in parts if part.get("type") not in _CHANGES]

    def _append(self, chat: list[Any], message: Any) -> None:
        """Add a message. A pending summary becomes the beginning of the message if the message is a
        user turn; otherwise it becomes a user turn before the message.
        """
        if self._summary is not None and isinstance(message, dict):
            summary, self._summary = self._summary, None
            if message.get("role") == "user":
                message = {**message, "content": [summary, *_content(message)]}
            else:
                chat.append({"role": "user", "content": [summary]})
        chat.append(message)

    # -- messages ----------------------------------------------------------------------

    def _is_plain(self, message: Any) -> bool:
        """Return whether a message is passed on unchanged: vLLM accepts it, or refuses it as
        malformed.
        """
        if not isinstance(message, dict):
            return True
        content = message.get("content")
        if isinstance(content, str):
            return True
        role = str(message.get("role"))
        known = _PLAIN.get(role)
        if known is None or (content is None and role == "user"):
            return True
        if not isinstance(content, list):
            return False
        for block in content:
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(kind, str) or kind not in known:
                return False
            if kind == "tool_result" and not _is_plain_result(block):
                return False
            if kind == "tool_use" and not isinstance(block.get("input"), dict):
                return False
        return True

    def _message(self, message: Block) -> Iterable[dict[str, Any]]:
        role, blocks = str(message["role"]), _content(message)
        before = len(self._left_out.types)
        if role == "system":
            parts = [part for block in blocks for part in self._system_block(block)]
            if parts:
                yield {**message, "content": parts}
            return
        turns = _SplitTurns(role)
        for block in blocks:
            if block.get("type") in _CHANGES:
                turns.changes += self._change(block)
            elif block.get("type") == "compaction":
                self._compaction(block, turns)
            elif role == "assistant":
                self._assistant_block(block, turns)
            else:
                turns.add("user", self._user_block(block))
        if turns.changes:
            yield {"role": "system", "content": turns.changes}
        if not turns.all and self._summary is None:
            types = self._left_out.types[before:]
            text = f"[left out: {', '.join(types)}]" if role == "user" and types else ""
            turns.add(role, [_text(text)] if text else [])
        for turn in turns.all:
            yield {**message, **turn} if turn["role"] == role else turn

    def _assistant_block(self, block: Block, turns: _SplitTurns) -> None:
        kind = str(block.get("type"))
        if kind in _CALLS or kind == "tool_use":
            self._call(kind, block, turns)
        elif kind.endswith(_RESULT):
            if str(block.get("tool_use_id")) in self._calls:
                turns.add("user", [self._result(block)])
            else:
                turns.add("assistant", self._texts_of_result(block))
        elif kind in _PLAIN["assistant"]:
            turns.add("assistant", [block])
        elif kind == "image":
            self._left_out.add("image")
        else:
            turns.add("assistant", self._other_block(kind, block))

    def _call(self, kind: str, block: Block, turns: _SplitTurns) -> None:
        """Add a tool call of the assistant. A call of a server's tool is left out if it has no
        result.
        """
        call_id, name = str(block.get("id")), str(block.get("name"))
        if kind in _CALLS and call_id not in self._answered:
            self._left_out.add(f"{kind}:{name}")
            return
        self._calls.add(call_id)
        call = {"type": "tool_use", "id": call_id, "name": name, "input": _input(block)}
        turns.add("assistant", [call if kind in _CALLS else {**block, "input": call["input"]}])

    def _user_block(self, block: Block) -> list[Block]:
        kind = str(block.get("type"))
        if kind == "tool_result":
            return [block if _is_plain_result(block) else self._result(block)]
        if kind.endswith(_RESULT):
            if str(block.get("tool_use_id")) in self._calls:
                return [self._result(block)]
            return self._texts_of_result(block)
        if kind in _PLAIN["user"]:
            return [block]
        return self._other_block(kind, block)

    def _system_block(self, block: Block) -> list[Block]:
        kind = str(block.get("type"))
        if kind == "text":
            return [block]
        if kind in _CHANGES:
            return self._change(block)
        return [part for part in self._other_block(kind, block) if part["type"] == "text"]

    def _other_block(self, kind: str, block: Block) -> list[Block]:
        """Convert an image, a document or another block that is neither text nor a result."""
        if kind == "image":
            return self._image(block)
        if kind == "document":
            return self._document(block)
        if kind in _AS_TEXT:
            return [_text(readable(block))]
        if kind not in _NOT_SHOWN:
            self._left_out.add(kind)
        return []

    # -- blocks ------------------------------------------------------------------------

    def _image(self, block: Block) -> list[Block]:
        source = block.get("source")
        kind = source.get("type", "base64") if isinstance(source, dict) else "unknown"
        if kind == "url" and isinstance(source, dict) and isinstance(source.get("url"), str):
            is_known = True
        else:
            data = source.get("data") if isinstance(source, dict) else None
            is_known = kind == "base64" and isinstance(data, str) and bool(data)
        if not is_known:
            self._left_out.add(f"image:{kind}")
            return [_text(f"[An image is not shown: this server cannot read its source, {kind}.]")]
        if not self._takes_images():
            self._left_out.add("image")
            return [_text("[An image is not shown: this model takes text only.]")]
        return [block]

    def _document(self, block: Block) -> list[Block]:
        """Convert a document to its text, followed by its images."""
        source = block.get("source")
        source = source if isinstance(source, dict) else {}
        kind, media = str(source.get("type")), str(source.get("media_type") or "")
        text, images = _document_text(source), list[Block]()
        if kind == "content":
            inner = [part for part in _content(source) if part.get("type") == "image"]
            images = [image for part in inner for image in self._image(part)]
        if text is None:
            name = str(block.get("title") or source.get("url") or source.get("file_id") or "")
            name = " ".join(filter(None, (name, f"({media or kind})")))
            self._left_out.add(f"document:{media or kind}")
            text = f"[The document {name} is not shown: this server reads text only.]"
        return [_text(_tagged("document", block, text)), *images]

    def _result(self, block: Block) -> dict[str, Any]:
        """Convert the result of any kind of tool to the result of an ordinary tool."""
        own = {"type": "tool_result", "tool_use_id": str(block.get("tool_use_id"))}
        if block.get("type") == "tool_search_tool_result":
            inner = block.get("content")
            names = inner.get("tool_references") if isinstance(inner, dict) else None
            if isinstance(names, list):
                return {**own, "content": [name for name in names if isinstance(name, dict)]}
        if block.get("type") != "tool_result":
            return {**own, "content": readable(block.get("content"))}
        parts: list[Block] = []
        for part in _content(block):
            kind = str(part.get("type"))
            if kind == "text":
                parts.append(_text(str(part.get("text") or "")))
            elif kind == "tool_reference":
                name = part.get("tool_name") or part.get("name")
                if isinstance(name, str):
                    parts.append({"type": kind, "tool_name": name})
                else:
                    self._left_out.add(kind)
            else:
                parts += self._other_block(kind, part)
        return {**block, **own, "content": parts}

    def _texts_of_result(self, block: Block) -> list[Block]:
        """Convert a result whose call is not in the chat to a text."""
        text = readable(block.get("content"))
        return [_text(f"Tool result: {text}")] if text else []

    def _change(self, block: Block) -> list[Block]:
        """Convert a change of the tools; a tool that this server does not offer gives no block."""
        tool = block.get("tool")
        tool = tool if isinstance(tool, dict) else {}
        kind, name = tool.get("type"), str(tool.get("name") or tool.get("tool_name") or "")
        if kind == "tool_definition" and isinstance(tool.get("definition"), dict):
            known = self._tools.define(tool["definition"], self._offered, self._left_out.add)
            if known is None:
                return []
            return [{**block, "tool": {"type": kind, "definition": known}}]
        if kind == "tool_reference" and name in self._tools.names:
            return [{**block, "tool": {"type": kind, "name": name}}]
        if kind != "tool_reference" or name not in self._tools.left_out:
            self._left_out.add(f"{block['type']}:{kind}")
        return []

    def _compaction(self, block: Block, turns: _SplitTurns) -> None:
        """Read a compaction block, whose summary replaces all messages before it. A failed
        compaction has an empty summary.
        """
        changes = block.get("tool_changes")
        for change in changes if isinstance(changes, list) else ():
            if isinstance(change, dict) and str(change.get("type")) in _CHANGES:
                turns.changes += self._change(change)
        text = block.get("content")
        if isinstance(text, str) and text:
            self._summary = _text(_SUMMARY + text)
        elif block.get("encrypted_content"):
            self._left_out.add("compaction:encrypted")


class _SplitTurns:
    """The turns that a message is split into.

    A result of a server's tool ends the assistant's turn that has the call.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self.all: list[dict[str, Any]] = []
        self.changes: list[Block] = []

    def add(self, role: str, blocks: Sequence[Block]) -> None:
        """Add blocks to the last turn if it has this ``role``; otherwise begin a new turn."""
        if self.all and self.all[-1]["role"] == role:
            self.all[-1]["content"] += blocks
        elif blocks or (role == self.role == "assistant" and not self.all):
            self.all.append({"role": role, "content": list(blocks)})


def _from_compaction(messages: Sequence[Any]) -> Iterable[Any]:
    """Return the messages from the last summary on, without the messages that it summarizes."""
    start, first = 0, None
    for index, message in enumerate(messages):
        for place, block in enumerate(_blocks_of(message)):
            if block.get("type") == "compaction" and block.get("content"):
                start, first = index, place
    if first is None:
        return messages
    begin = messages[start]
    return [{**begin, "content": _content(begin)[first:]}, *messages[start + 1 :]]


# -- texts ---------------------------------------------------------------------------------


def sealed(text: str) -> str:
    """Encode a text for a field that is opaque to clients, which send it back unchanged."""
    return _OWN + base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _unsealed(value: Any) -> str:
    """Return the text that this server put into an opaque field; "" for another server's value."""
    if not isinstance(value, str) or not value.startswith(_OWN):
        return ""
    try:
        return base64.b64decode(value.removeprefix(_OWN)).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""


def readable(value: Any) -> str:
    """Return the text that a model can read in a block, a list of blocks or another value."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(readable, value)))
    if not isinstance(value, dict):
        return "" if value is None else json.dumps(value, ensure_ascii=False)
    kind = str(value.get("type") or "")
    if kind in _READERS:
        return _READERS[kind](value)
    if kind.endswith("error"):
        message = value.get("error_message") or ""
        return f"error: {value.get('error_code')} {message}".rstrip()
    shown = {n: v for n, v in value.items() if n != "type" and not _is_opaque(n, v)}
    return json.dumps(shown, ensure_ascii=False) if shown else ""


def _readable_document(block: Block) -> str:
    source = block.get("source")
    text = _document_text(source) if isinstance(source, dict) else None
    return _tagged("document", block, text or "")


def _readable_search(block: Block) -> str:
    return _tagged("search_result", block, readable(block.get("content")))


def _readable_hit(block: Block) -> str:
    head = (str(block.get(name) or "") for name in ("title", "url", "page_age"))
    return "\n".join(filter(None, (*head, _unsealed(block.get("encrypted_content")))))


def _readable_page(block: Block) -> str:
    head = str(block.get("url") or "")
    return "\n".join(filter(None, (head, readable(block.get("content")))))


def _readable_text(block: Block) -> str:
    return str(block.get("text") or "")


_READERS: Mapping[str, Callable[[Block], str]] = {
    "text": _readable_text,
    "advisor_result": _readable_text,
    "document": _readable_document,
    "search_result": _readable_search,
    "web_search_result": _readable_hit,
    "web_fetch_result": _readable_page,
}


def _is_opaque(name: str, value: Any) -> bool:
    """Return whether a field is empty, or has a value that a model cannot read."""
    is_empty = value is None or value == [] or value == {}
    return is_empty or name.startswith("encrypted") or name in ("signature", "cache_control")


def _document_text(source: Block) -> str | None:
    """Return the text of a document; None if the document is not text, or is not in the request."""
    kind, data = source.get("type"), source.get("data")
    if kind == "text" and isinstance(data, str):
        return data
    if kind == "content":
        inner = source.get("content")
        parts = [inner] if isinstance(inner, str) else _content(source)
        texts = [p if isinstance(p, str) else str(p.get("text") or "") for p in parts]
        return "\n".join(filter(None, texts))
    media = str(source.get("media_type") or "")
    if kind == "base64" and isinstance(data, str) and media.startswith("text/"):
        try:
            return base64.b64decode(data).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return None
    url = source.get("url")
    if kind == "url" and isinstance(url, str) and url.startswith("data:"):
        head, _, rest = url.partition(",")
        if head.startswith("data:text/") and head.endswith(";base64"):
            inner_source = {"type": "base64", "media_type": "text/plain", "data": rest}
            return _document_text(inner_source)
    return None


def _tagged(tag: str, block: Block, text: str) -> str:
    """Enclose the text of a block in a tag. The tag's attributes are the block's title, and the
    block's source (for a search result) or context (for any other block).
    """
    names = ("title", "source") if tag == "search_result" else ("title", "context")
    values = [(name, block.get(name)) for name in names]
    shown = [f"{name}={json.dumps(v, ensure_ascii=False)}" for name, v in values if v]
    return f"<{' '.join([tag, *shown])}>\n{text}\n</{tag}>"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_text(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") == "text"


def _is_result(block: Block) -> bool:
    return str(block.get("type")).endswith(_RESULT)


def _is_plain_result(block: Block) -> bool:
    """Return whether vLLM can read a result: it is a text, or has texts and tool references
    only.
    """
    content = block.get("content")
    if content is None or isinstance(content, str):
        return True
    if not isinstance(content, list):
        return False
    return all(
        isinstance(part, dict)
        and (
            (part.get("type") == "text" and isinstance(part.get("text"), str))
            or (part.get("type") == "tool_reference" and isinstance(part.get("tool_name"), str))
        )
        for part in content
    )


def _input(block: Block) -> dict[str, Any]:
    """Return the arguments of a call, which may be an object or JSON in a text. Return an empty
    object for any other value.
    """
    value = block.get("input")
    if isinstance(value, str):
        try:
            value = from_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def _block(value: Any) -> dict[str, Any]:
    """Return a value as a block, whose type is a string. A string, or an object with ``text`` and
    no type, is a text block.
    """
    if isinstance(value, dict):
        if "type" not in value and "text" in value:
            return {**value, "type": "text"}
        kind = value.get("type")
        return value if isinstance(kind, str) else {**value, "type": str(kind)}
    return _text(value if isinstance(value, str) else json.dumps(value))


def _content(message: Block) -> list[dict[str, Any]]:
    """Return the content of a message, a result or a source as a list of blocks."""
    content = message.get("content")
    if content is None:
        return []
    return [_block(block) for block in (content if isinstance(content, list) else [content])]


def _blocks_of(message: Any) -> list[dict[str, Any]]:
    """Return the blocks of a message that are objects."""
    content = message.get("content") if isinstance(message, dict) else None
    return [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
