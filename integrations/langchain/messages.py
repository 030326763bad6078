"""LangChain messages as ours: mappings in the shape of OpenAI's API, with text only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from agentrt.errors import ConfigError
from agentrt.request import Message

_TEXT = frozenset({"text", "input_text", "output_text", "text-plain"})
_REFUSAL = "refusal"
# Said elsewhere (a message has its tool calls as a field), or a model's own thoughts, which
# are not told to it again.
_SILENT = frozenset(
    {
        "tool_use",
        "tool_call",
        "tool_call_chunk",
        "invalid_tool_call",
        "function_call",
        "thinking",
        "redacted_thinking",
        "reasoning",
        "reasoning_content",
    }
)
_ROLES = {"human": "user", "ai": "assistant"}


def as_chat(messages: Sequence[BaseMessage]) -> tuple[Message, ...]:
    """The chat for a `CallSpec`. Raises `ConfigError` for what no text model can take."""
    if not messages:
        raise ConfigError("a chat model needs at least one message")
    return tuple(ours for message in messages for ours in _as_ours(message))


def _as_ours(message: BaseMessage) -> Iterable[dict[str, Any]]:
    # ChatMessage and FunctionMessage are no subclasses of the others, but chunks are.
    if isinstance(message, HumanMessage):
        return _from_human(message)
    if isinstance(message, AIMessage):
        return [_from_ai(message)]
    if isinstance(message, ToolMessage):
        return [_from_tool(message)]
    if isinstance(message, SystemMessage):
        return [_plain("system", message)]
    if isinstance(message, FunctionMessage):
        return [{**_plain("tool", message), "tool_call_id": _function_id(message.name)}]
    if isinstance(message, ChatMessage):
        return [_plain(_ROLES.get(message.role, message.role), message)]
    raise ConfigError(
        f"a {type(message).__name__} is no part of a chat: send system, human, ai and tool messages"
    )


def _plain(role: str, message: BaseMessage) -> dict[str, Any]:
    ours: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if message.name:
        ours["name"] = message.name
    return ours


def _from_human(message: HumanMessage) -> Iterator[dict[str, Any]]:
    """A human message; Anthropic puts the results of tools into one."""
    blocks = message.content if isinstance(message.content, list) else []
    results = [block for block in blocks if _type(block) == "tool_result"]
    for block in results:
        assert isinstance(block, dict)
        text = _failed(_text(block.get("content") or ""), bool(block.get("is_error")))
        yield {"role": "tool", "content": text, "tool_call_id": block.get("tool_use_id")}
    if not results:
        yield _plain("user", message)
    elif rest := [block for block in blocks if block not in results]:
        yield _plain("user", message.model_copy(update={"content": rest}))


def _from_tool(message: ToolMessage) -> dict[str, Any]:
    text = _failed(_text(message.content), message.status == "error")
    ours = {"role": "tool", "content": text, "tool_call_id": message.tool_call_id}
    return {**ours, "name": message.name} if message.name else ours


def _failed(text: str, failed: bool) -> str:
    """A tool's text that shows its failure; only a field said so before."""
    return f"Error: {text}" if failed and not text.lower().startswith("error") else text


def _from_ai(message: AIMessage) -> dict[str, Any]:
    ours = _plain("assistant", message)
    calls = [
        _call(call["id"], call["name"], json.dumps(call["args"], ensure_ascii=False))
        for call in message.tool_calls or _used(message.content)
    ]
    calls += [
        _call(bad.get("id"), bad.get("name") or "unknown", bad.get("args") or "")
        for bad in message.invalid_tool_calls
    ]
    old = message.additional_kwargs.get("function_call")
    if old and not calls:
        calls.append(_call(_function_id(old["name"]), old["name"], old["arguments"]))
    return {**ours, "tool_calls": calls} if calls else ours


def _used(content: str | list[str | dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Anthropic's blocks of tool use, in a message that says its calls in no other way."""
    for block in content if isinstance(content, list) else []:
        if isinstance(block, dict) and _type(block) == "tool_use":
            yield {"id": block.get("id"), "name": block["name"], "args": block.get("input") or {}}


def _call(call_id: str | None, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _function_id(name: str | None) -> str:
    """OpenAI's old function calls have no id, and one function answers at a time."""
    return f"function_{name}"


def _text(content: str | list[str | dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(piece for block in content if (piece := _block_text(block)))


def _block_text(block: str | dict[str, Any]) -> str:
    kind = _type(block)
    if isinstance(block, str):
        return block
    if kind in _TEXT or (kind is None and "text" in block):
        return str(block.get("text", ""))
    if kind == _REFUSAL:
        return str(block.get(_REFUSAL, ""))
    if kind in _SILENT:
        return ""
    raise ConfigError(
        f"a content block of type {kind!r} cannot be sent: the model reads text only; leave it "
        "out, or describe it in a block of type 'text'"
    )


def _type(block: str | dict[str, Any]) -> str | None:
    return "text" if isinstance(block, str) else block.get("type")
