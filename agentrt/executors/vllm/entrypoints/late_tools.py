"""Shows a tool at the place in the chat where it is loaded, so that the cached prefix stays valid.

Coding agents announce hundreds of tools with ``defer_loading``. The model loads the tools that it
needs by a search, whose result names them in ``tool_reference`` blocks. Chat templates show all
tools at the front, so each load would change the beginning of the prompt. Here a deferred tool is
shown in the first result that loads it, and not before.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentrt.executors.vllm._compat.api_server import template_of

_REFERENCE = "tool_reference"
_BOUNDARY = "Tool loaded."
"""A line without meaning that Claude Code adds to the user's message after references."""
_LOADED = "These tools can be called from now on:"
_LATER = "defer_loading"
_ONLY_HERE = (_LATER, "strict")
"""Fields of a deferred tool that are not shown to the model."""

Message = dict[str, Any]


def shown_late(renderer: Any, messages: Sequence[Any], params: Any) -> tuple[Sequence[Any], Any]:
    """Show a chat's deferred tools where they are loaded; return its messages and render
    parameters.

    A chat template that supports ``tool_reference`` blocks gets the chat unchanged.
    """
    options = params.chat_template_kwargs
    tools = options.get("tools") or ()
    if not any(map(_says_when, tools)) and not any(map(_has_references, messages)):
        return messages, params
    if _REFERENCE in (template_of(renderer, params) or ""):
        return messages, params
    first = [_without_time(tool) for tool in tools if not _is_deferred(tool)]
    deferred = {_name(tool): tool for tool in tools if _is_deferred(tool)}
    without = {**options, "tools": first or None}
    chat = in_results(messages, deferred, {_name(tool) for tool in first})
    return chat, dataclasses.replace(params, chat_template_kwargs=without)


def in_results(
    messages: Sequence[Any], deferred: Mapping[str, Any], first: Collection[str] = ()
) -> list[Any]:
    """Return the messages with each deferred tool in the result that loads it.

    ``deferred`` has the tools by name, and ``first`` are the names of all other tools. References
    are removed, since the model cannot read them. vLLM splits a search's result into a message with
    its text, which is mostly empty, and a message with the references; they are joined here.
    """
    left = dict(deferred)
    chat: list[Any] = []
    loads = False
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        loads = loads and role != "assistant"
        before = chat[-1] if chat else {}
        if _has_references(message):
            loads = True
            text = _loaded(message["content"], left, deferred.keys() | first)
            if _is_same_result(before, message) and isinstance(before.get("content"), str):
                chat.pop()
                text = "\n".join(filter(None, (before["content"], text)))
            chat.append({**message, "content": text})
        elif loads and role == "user":
            content = _without_boundary(message.get("content"))
            chat += [{**message, "content": content}] if content else []
        else:
            chat.append(message)
    return chat


def _loaded(content: Sequence[Any], left: dict[str, Any], known: Collection[str]) -> str:
    """Return the text of a result that loads tools, with the tools that were not loaded before.

    Tools that the result loads are removed from ``left``, the deferred tools that are not loaded
    yet. ``known`` are the names of all tools of the request.
    """
    texts, tools, names = [], [], []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            raise ValueError(
                f"the content of a tool message has the part {part!r:.80}; use objects"
            )
        if part.get("type") != _REFERENCE:
            texts.append(str(part.get("text") or ""))
            continue
        name = part.get("name") or part.get("tool_name") or part.get(_REFERENCE)
        names.append(str(name))
        if (tool := left.pop(str(name), None)) is not None:
            tools.append(_shown(tool))
    if tools:
        texts += [_LOADED, "<tools>", *tools, "</tools>"]
    elif loaded := [name for name in names if name in known]:
        texts.append(f"Loaded: {', '.join(loaded)}")
    if missing := [name for name in names if name not in known]:
        texts.append(f"Not available: {', '.join(missing)}")
    return "\n".join(filter(None, texts))


def _shown(tool: Mapping[str, Any]) -> str:
    """Return a tool as most chat templates show it: a line of JSON."""
    function = {name: v for name, v in tool["function"].items() if name not in _ONLY_HERE}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _says_when(tool: Any) -> bool:
    """Return whether a tool says when it is shown: at once or later."""
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and function.get(_LATER) is not None


def _is_deferred(tool: Any) -> bool:
    return _says_when(tool) and bool(tool["function"][_LATER])


def _without_time(tool: Any) -> Any:
    if not _says_when(tool):
        return tool
    function = {name: value for name, value in tool["function"].items() if name != _LATER}
    return {**tool, "function": function}


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name") or "") if isinstance(function, dict) else ""


def _has_references(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") != "tool":
        return False
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == _REFERENCE for part in content
    )


def _is_same_result(before: Any, message: Message) -> bool:
    return (
        isinstance(before, dict)
        and before.get("role") == "tool"
        and before.get("tool_call_id") == message.get("tool_call_id")
    )


def _without_boundary(content: Any) -> Any:
    """Return the content of a message without the lines `_BOUNDARY`, which have no meaning."""
    if isinstance(content, str) and _BOUNDARY in content:
        lines = [line for line in content.split("\n") if line.strip() != _BOUNDARY]
        return "\n".join(lines).strip()
    if isinstance(content, list):
        return [part for part in content if not _is_boundary(part)]
    return content


def _is_boundary(part: Any) -> bool:
    return isinstance(part, dict) and str(part.get("text")).strip() == _BOUNDARY
