"""What a journal keeps of values that are more than their data: tools, contexts, streams."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrt.contexts.saved import SavedContext
from agentrt.executors.base import Chunk
from agentrt.executors.frontend import Answer
from agentrt.interrupts import Tool, ToolOptions
from agentrt.interrupts.toolbox import Toolbox
from agentrt.request import Reply, ToolSpec


@dataclass(frozen=True, slots=True)
class KeptTool:
    """A tool that is elsewhere, and by which transport."""

    name: str
    remote: str
    transport: str
    spec: ToolSpec | None
    result_schema: Mapping[str, Any] | None
    options: ToolOptions


def kept_tool(tool: Tool) -> KeptTool:
    """What is kept of a tool that a transport offers."""
    transport = "" if tool.transport is None else tool.transport.name
    return KeptTool(tool.name, tool.remote, transport, tool.spec, tool.result_schema, tool.options)


def read_tool(kept: KeptTool, toolbox: Toolbox) -> Tool:
    """The tool again. Raises `UnknownToolError` where its transport is not there."""
    return Tool(
        kept.name,
        remote=kept.remote,
        spec=kept.spec,
        result_schema=kept.result_schema,
        options=kept.options,
        transport=toolbox.transport(kept.transport) if kept.transport else None,
    )


def kept_context(context: SavedContext) -> dict[str, Any]:
    """What is kept of a context that was saved."""
    return {"token_ids": list(context.token_ids), "model": context.model}


def read_context(kept: Mapping[str, Any]) -> SavedContext:
    """The context again."""
    return SavedContext(array("I", kept["token_ids"]), kept["model"])


@dataclass(frozen=True, slots=True)
class Broken:
    """The pieces of a call that its program stopped reading."""

    pieces: list[Any]


def kept_chunk(chunk: Chunk) -> Chunk:
    """A piece without the engine's own form of it."""
    return replace(chunk, output=None)


def chunks_of(found: Reply | Broken) -> Iterator[Chunk]:
    """The pieces of a call of token ids that was recorded: if whole, as one."""
    if isinstance(found, Broken):
        yield from found.pieces
    else:
        yield Chunk(found.text, found, token_ids=found.token_ids)


def pieces_of(found: Reply | Broken) -> Iterator[Answer]:
    """The pieces of a chat call that was recorded: if whole, one for each choice."""
    if isinstance(found, Broken):
        yield from found.pieces
        return
    for index, reply in enumerate(found.choices or (found,)):
        delta: dict[str, Any] = {"role": "assistant", "content": reply.text}
        if reply.reasoning:
            delta["reasoning"] = reply.reasoning
        calls = [
            (one.id, one.name, json.dumps(one.arguments, ensure_ascii=False))
            for one in reply.tool_calls
        ]
        calls += [(one.id, one.name, one.arguments) for one in reply.invalid_tool_calls]
        if calls:
            delta["tool_calls"] = [
                {
                    "index": number,
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (call_id, name, arguments) in enumerate(calls)
            ]
        choice = {"index": index, "delta": delta, "finish_reason": reply.finish_reason}
        yield {"object": "chat.completion.chunk", "choices": [choice]}
