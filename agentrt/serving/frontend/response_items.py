"""Convert input items of the Responses API into items that every model can read.

Clients send all kinds of items in a history: calls of tools that a client or OpenAI's servers ran,
summaries, references to other items, and types of their own. These become messages, reasoning,
function calls and outputs of functions. Items that no model can read are left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt.serving.frontend.left_out import LeftOut
from agentrt.serving.frontend.response_tools import (
    CLIENT_TOOLS,
    Carried,
    client_arguments,
    custom_arguments,
    flat_name,
    loaded_tools,
)

Json = dict[str, Any]
Item = Mapping[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_FIELDS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Types of parts that are text, and the field that has the text."""
MEDIA = {"input_image": "image_url", "input_audio": "input_audio"}
"""Types of parts that only some models accept, and the field that vLLM needs to read them."""
_COMPACTED = "agentrt.summary:"
_SUMMARY = "This is a summary of the conversation before this point:"
COMPACTIONS = ("compaction", "context_compaction", "compaction_summary")
TRIGGER = "compaction_trigger"
REFERENCE = "item_reference"
AGENT_MESSAGE = "agent_message"
"""A message between two agents of Codex: the task of a sub-agent, or its answer."""
_CIPHERTEXT = "gAAAA"
"""The beginning of texts that OpenAI's servers have encrypted."""
_LOADED = "These tools can be called from now on:"
_ONLY_HERE = ("defer_loading", "strict", "type")
_RESULTS = {
    "file_search_call": ("queries", "results"),
    "code_interpreter_call": ("code", "outputs"),
    "mcp_call": ("arguments", "output"),
}
"""The types of items that have both a call of a server's tool and its result, and the fields with
the call and with the result.
"""
SUMMARIZE = (
    "Write a summary of this conversation, so that another assistant can continue the work "
    "without having read it. Say what the user wants, with every requirement and limit that still "
    "holds; what was done and decided, with the names of files, commands and values; what was "
    "learned, errors included; and what remains to be done next. Answer with the summary only."
)
"""The message that asks the model for a summary, at the end of a chat."""


@dataclass(slots=True)
class ItemReader:
    """A converter of the items of one request.

    ``carried`` has the request's tools, and items may add tools to it. ``item_of`` returns an item
    of a stored response by its id. ``media`` are the types of parts besides text that the model
    accepts. With ``strict_calls``, which the harmony format needs, a tool's output becomes plain
    text, and an output whose call is missing becomes a user's message. ``is_compaction`` becomes
    True when an item asks for a summary.
    """

    carried: Carried
    left_out: LeftOut
    item_of: Callable[[str], Item | None]
    media: frozenset[str] = frozenset()
    strict_calls: bool = False
    is_compaction: bool = False
    _call_ids: dict[str, str] = field(default_factory=dict)
    _count: int = 0

    def read(self, items: Sequence[Any]) -> list[Any]:
        """Convert the items of a request into items that the model can read. Values that are not
        objects are returned unchanged.
        """
        chat: list[Any] = []
        for item in items:
            if isinstance(item, Mapping):
                chat += self._read_item(item)
            else:
                chat.append(item)
        if self.is_compaction:
            chat.append(_message("user", SUMMARIZE))
        return chat

    def _read_item(self, item: Item) -> Iterator[Json]:
        kind = item_type(item)
        if kind == "message":
            yield from self._read_message(item)
        elif kind == AGENT_MESSAGE and isinstance(item.get("content"), list):
            yield from self._read_message({"role": "user", "content": _joined(item["content"])})
        elif kind == "reasoning":
            yield from self._read_reasoning(item)
        elif kind in COMPACTIONS:
            summary = summary_of(item)
            yield from self._unless_none(
                kind, None if summary is None else _message("user", f"{_SUMMARY}\n\n{summary}")
            )
        elif kind == TRIGGER:
            self.is_compaction = True
        elif kind == REFERENCE:
            yield from self._read_reference(item)
        elif kind == "additional_tools" and isinstance(item.get("tools"), list):
            self._add_tools(item["tools"])
        elif kind.endswith("_output"):
            yield from self._read_output(kind, item)
        else:
            yield from self._read_call(kind, item)

    def _unless_none(self, kind: object, item: Json | None) -> Iterator[Json]:
        """Yield an item. For None, note that an item of this ``kind`` was left out."""
        if item is None:
            self.left_out.add(kind)
        else:
            yield item

    # -- messages ----------------------------------------------------------------------

    def _read_message(self, item: Item) -> Iterator[Json]:
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str) or role not in _ROLES:
            self.left_out.add(f"message.{role}")
            return
        parts = [content] if isinstance(content, str) else content
        if not isinstance(parts, list):
            if content is not None:
                yield {**item, "type": "message"}  # vLLM refuses it with a message of its own
            return
        if role == "assistant":
            text = "".join(self._texts(parts))
            if text:
                yield _assistant(item, text)
            return
        known = [] if isinstance(content, str) else [*self._parts(parts)]
        if isinstance(content, str) or known:
            yield {"type": "message", "role": role, "content": known or content}

    def _texts(self, parts: Sequence[Any]) -> Iterator[str]:
        """Yield the text of each part that is a text. The kinds of all other parts are added to
        `left_out`.
        """
        for part in parts:
            text = text_of(part)
            if text is None:
                self.left_out.add(_kind(part))
            else:
                yield text

    def _parts(self, parts: Sequence[Any]) -> Iterator[Json]:
        """Yield parts that vLLM can read. A note replaces each part that vLLM cannot read."""
        for part in parts:
            text, kind = text_of(part), _kind(part)
            if text is not None:
                yield _text(text)
            elif kind in self.media and part.get(MEDIA[kind]):
                yield {"detail": "auto", **part} if kind == "input_image" else dict(part)
            else:
                self.left_out.add(kind)
                name = part.get("filename") if isinstance(part, Mapping) else None
                yield _text(f"[{kind}{f' {name}' if isinstance(name, str) else ''}: left out]")

    def _read_reasoning(self, item: Item) -> Iterator[Json]:
        parts = [
            part
            for name in ("content", "summary")
            if isinstance(item.get(name), list)
            for part in item[name]
        ]
        content = item.get("content")
        has_content = isinstance(content, list) and bool(content)
        chosen = content if has_content and isinstance(content, list) else parts
        text = "\n".join(filter(None, map(text_of, chosen)))
        if text:
            reasoning = {"type": "reasoning_text", "text": text}
            own_id = item.get("id")
            yield {
                "type": "reasoning",
                "id": own_id if isinstance(own_id, str) else self._new_id("rs"),
                "summary": [],
                "content": [reasoning],
                **({"status": item["status"]} if item.get("status") else {}),
            }
        elif item.get("encrypted_content"):
            self.left_out.add("reasoning")

    def _read_reference(self, item: Item) -> Iterator[Json]:
        name = item.get("id")
        stored = self.item_of(name) if isinstance(name, str) else None
        if stored is None or item_type(stored) == REFERENCE:
            self.left_out.add(REFERENCE)
        else:
            yield from self._read_item(stored)

    # -- calls and their outputs -------------------------------------------------------

    def _read_call(self, kind: str, item: Item) -> Iterator[Json]:
        name = item.get("name")
        if kind in ("function_call", "custom_tool_call") and isinstance(name, str) and name:
            arguments = item.get("arguments")
            if kind == "custom_tool_call":
                arguments = custom_arguments(item.get("input"))
            yield self._call(flat_name(name, item.get("namespace")), arguments, item)
        elif kind.removesuffix("_call") in CLIENT_TOOLS and kind.endswith("_call"):
            tool = kind.removesuffix("_call")
            yield self._call(tool, client_arguments(tool, item), item)
        elif kind == "computer_call":
            action = item.get("action") or item.get("actions") or {}
            yield self._call("computer", action, item)
        elif kind == "program":
            yield self._call("program", {"code": item.get("code")}, item)
        elif kind in _RESULTS and item.get(_RESULTS[kind][1]) not in (None, [], ""):
            arguments, result = (item.get(name) for name in _RESULTS[kind])
            tool = flat_name(str(name), item.get("server_label")) if kind == "mcp_call" else kind
            if kind != "mcp_call":
                tool, arguments = kind.removesuffix("_call"), {_RESULTS[kind][0]: arguments}
            call = self._call(tool, arguments, item)
            yield call
            yield _output(call["call_id"], result if isinstance(result, str) else _dump(result))
        else:
            self.left_out.add(kind)

    def _call(self, name: str, arguments: object, item: Item) -> Json:
        """Return a function call. A later output may refer to the call by its call id or its item
        id.
        """
        own_id, call_id = item.get("id"), item.get("call_id")
        if not isinstance(call_id, str) or not call_id:
            call_id = own_id if isinstance(own_id, str) and own_id else self._new_id("call")
        if isinstance(own_id, str):
            self._call_ids[own_id] = call_id
        self._call_ids[call_id] = call_id
        if arguments is None:
            arguments = "{}"
        return {
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": arguments if isinstance(arguments, str) else _dump(arguments),
        }

    def _read_output(self, kind: str, item: Item) -> Iterator[Json]:
        call_id = item.get("call_id") or item.get("id")
        if not isinstance(call_id, str):
            self.left_out.add(kind)
            return
        output = self._output_of(kind, item)
        known = self._call_ids.get(call_id)
        if known is None and self.strict_calls:
            yield _message("user", f"[output of an earlier tool call]\n{_plain(output)}")
        else:
            yield _output(known or call_id, _plain(output) if self.strict_calls else output)

    def _output_of(self, kind: str, item: Item) -> str | list[Json]:
        """Return a tool's output as a text or as parts. In place of a missing output, return the
        item's status, or an empty text if the item has no status.
        """
        if kind == "tool_search_output":
            tools = item.get("tools")
            return self._loaded(tools) if isinstance(tools, list) else ""
        output = item.get("result") if kind == "program_output" else item.get("output")
        if kind == "shell_call_output" and isinstance(output, list):
            return "\n".join(map(_shell_text, output))
        if kind == "computer_call_output" and isinstance(output, Mapping):
            output = [{**output, "type": "input_image"}]
        if isinstance(output, list) and all(isinstance(part, Mapping) for part in output):
            parts = [*self._parts(output)]
            texts = [part["text"] for part in parts if part["type"] == "input_text"]
            return "\n".join(texts) if len(texts) == len(parts) else parts
        if output is None:
            status = item.get("status")
            return status if isinstance(status, str) else ""
        return output if isinstance(output, str) else _dump(output)

    # -- tools that come later ---------------------------------------------------------

    def _loaded(self, tools: Sequence[Any]) -> str:
        """Add the tools that a search has loaded, and return the search's output: these tools as
        text.

        The tools are described here and not at the beginning of the prompt, because a changed
        beginning would miss the prefix cache. With ``strict_calls``, they are described in both
        places.
        """
        self._add_tools(tools, deferred=not self.strict_calls)
        lines = loaded_tools(tools, _tool_line)
        return "\n".join([_LOADED, "<tools>", *lines, "</tools>"]) if lines else "[]"

    def _add_tools(self, tools: Sequence[Any], *, deferred: bool = False) -> None:
        self.carried.load(tools, self.left_out, deferred=deferred)

    def _new_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"


def _joined(parts: Sequence[Any]) -> list[Any]:
    """Return the parts of a message between agents, with adjacent texts joined.

    Codex declares the task of a sub-agent to be encrypted, but this server's model writes it in
    plain text. So a part of this type is a text, unless OpenAI's servers have encrypted it.
    """
    joined: list[Any] = []
    for part in parts:
        text = text_of(part)
        if _kind(part) == "encrypted_content":
            content = part.get("encrypted_content")
            if isinstance(content, str) and not content.startswith(_CIPHERTEXT):
                text = content
        if text is None:
            joined.append(part)
        elif joined and (before := text_of(joined[-1])) is not None:
            joined[-1] = _text(before + text)
        else:
            joined.append(_text(text))
    return joined


# -- summaries -----------------------------------------------------------------------------


def compaction(summary: str, item_id: str) -> Json:
    """Return the history item for a summary. Clients treat its content as encrypted."""
    content = base64.b64encode(summary.encode("utf-8", "replace")).decode("ascii")
    return {"type": "compaction", "id": item_id, "encrypted_content": f"{_COMPACTED}{content}"}


def summary_of(item: Item) -> str | None:
    """Return the summary in a `compaction` item; None if the item was not made by an agentrt
    server,
    or if the summary is damaged.
    """
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_COMPACTED):
        return None
    try:
        return base64.b64decode(content.removeprefix(_COMPACTED), validate=True).decode()
    except ValueError:  # not base64, or not UTF-8 text
        return None


def item_type(item: Item) -> str:
    """Return the type of an item. Messages and item references may be sent without a type."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else REFERENCE


def input_items(own_input: Any) -> list[Any] | None:
    """Return the items of an input; None for a value of another type, which vLLM refuses."""
    if isinstance(own_input, str):
        return [{"type": "message", "role": "user", "content": own_input}]
    return own_input if isinstance(own_input, list) else None


def references(own_input: Any) -> list[str]:
    """Return the ids of the stored items that an input refers to."""
    items = own_input if isinstance(own_input, list) else ()
    return [
        item["id"]
        for item in items
        if isinstance(item, Mapping)
        and item_type(item) == REFERENCE
        and isinstance(item.get("id"), str)
    ]


# -- values --------------------------------------------------------------------------------


def text_of(part: Any) -> str | None:
    """Return the text of a part of a message; None for a part that is not text."""
    if isinstance(part, str):
        return part
    name = _TEXT_FIELDS.get(_kind(part))
    value = part.get(name) if name is not None else None
    return value if isinstance(value, str) else None


def _kind(part: Any) -> str:
    return str(part.get("type")) if isinstance(part, Mapping) else type(part).__name__


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [_text(text)]}


def _assistant(item: Item, text: str) -> Json:
    """Return an assistant's message. The message's status says whether the model continues the
    message.
    """
    own_id, status = item.get("id"), item.get("status")
    return {
        "type": "message",
        "role": "assistant",
        "id": own_id if isinstance(own_id, str) else "msg",
        "status": status if status in ("in_progress", "incomplete") else "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _output(call_id: str, output: Any) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def _plain(output: str | list[Json]) -> str:
    if isinstance(output, str):
        return output
    return "\n".join(str(part.get("text") or f"[{part['type']}]") for part in output)


def _shell_text(part: Any) -> str:
    """Return the output of one shell command, and a note if the command failed or timed out."""
    if not isinstance(part, Mapping):
        return _dump(part)
    texts = [str(part[name]) for name in ("stdout", "stderr") if part.get(name)]
    outcome = part.get("outcome")
    if isinstance(outcome, Mapping) and outcome.get("type") == "timeout":
        texts.append("[timed out]")
    elif isinstance(outcome, Mapping) and outcome.get("exit_code"):
        texts.append(f"[exit code {outcome['exit_code']}]")
    return "\n".join(texts)


def _tool_line(function: Json) -> str:
    """Return a loaded tool as a line of JSON, as most chat templates show tools."""
    shown = {name: value for name, value in function.items() if name not in _ONLY_HERE}
    return _dump({"type": "function", "function": shown})


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
