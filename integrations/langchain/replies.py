"""Replies as LangChain messages: whole, and as the chunks of a stream."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from agentrt.executors.base import Chunk
from agentrt.executors.partial import CallPart, OutputReader, read_cut_off
from agentrt.request import CallReport, CallSpec, Reply


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a reply comes from: the model's name, the call's spec, and its number at its portal.

    ``in_form`` says that text and tool calls are one JSON output, as `toolcalls` has it.
    """

    model: str
    spec: CallSpec
    number: int
    in_form: bool

    def call_id(self, index: int) -> str:
        """An id for the reply's tool call of that index.

        A call that is repeated with the same number gives the same id. Two calls of one chat
        never do, nor do those of another process that goes on with it.
        """
        asked = json.dumps(self.spec.messages, default=str)
        digest = hashlib.sha256(f"{self.number}/{index}/{asked}".encode())
        return f"call_{digest.hexdigest()[:24]}"


def as_result(reply: Reply, origin: Origin) -> ChatResult:
    """The result of a call that was not streamed."""
    text, invalid = reply.text, []
    if origin.in_form and not reply.tool_calls and reply.parsed is None:
        text, call = read_cut_off(reply.text)
        invalid = [_invalid(call, origin)] if call is not None else []
    calls = [
        ToolCall(name=call.name, args=call.arguments, id=origin.call_id(index), type="tool_call")
        for index, call in enumerate(reply.tool_calls)
    ]
    message = AIMessage(
        content="" if calls and origin.in_form else text,
        tool_calls=calls,
        invalid_tool_calls=invalid,
        usage_metadata=_usage(reply.report),
        response_metadata=_metadata(reply, origin),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def _invalid(call: CallPart, origin: Origin) -> InvalidToolCall:
    return InvalidToolCall(
        name=call.name,
        args=call.arguments,
        id=origin.call_id(0),
        error="cut off before its end",
        type="invalid_tool_call",
    )


@dataclass(slots=True)
class ChunkMaker:
    """Makes a stream's message chunks of a call's chunks."""

    origin: Origin
    reader: OutputReader = field(default_factory=OutputReader)

    def chunks(self, chunk: Chunk) -> Iterator[ChatGenerationChunk]:
        """What a chunk says. The last one has the usage, and says that it is the last."""
        if self.origin.in_form:
            parts = list(self.reader.feed(chunk.text))
            parts += self.reader.finish() if chunk.reply else ()
            yield from (self._part(part) for part in parts)
        elif chunk.text:
            yield self._part(chunk.text)
        if chunk.reply is not None:
            yield self._last(chunk.reply)

    def _part(self, part: str | CallPart) -> ChatGenerationChunk:
        if isinstance(part, str):
            return ChatGenerationChunk(message=AIMessageChunk(content=part))
        # Only the first piece of a call has its name, and with it its id.
        call_id = self.origin.call_id(0) if part.name is not None else None
        call = tool_call_chunk(name=part.name, args=part.arguments, id=call_id, index=0)
        return ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=[call]))

    def _last(self, reply: Reply) -> ChatGenerationChunk:
        message = AIMessageChunk(
            content="",
            tool_call_chunks=[] if self.origin.in_form else self._whole_calls(reply),
            usage_metadata=_usage(reply.report),
            response_metadata=_metadata(reply, self.origin),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message)

    def _whole_calls(self, reply: Reply) -> list[ToolCallChunk]:
        return [
            tool_call_chunk(
                name=call.name,
                args=json.dumps(call.arguments, ensure_ascii=False),
                id=self.origin.call_id(index),
                index=index,
            )
            for index, call in enumerate(reply.tool_calls)
        ]


def _usage(report: CallReport) -> UsageMetadata:
    # A call that is computed again after a preemption finds its own prompt cached.
    cached = min(report.cached_tokens, report.prompt_tokens)
    return UsageMetadata(
        input_tokens=report.prompt_tokens,
        output_tokens=report.output_tokens,
        total_tokens=report.prompt_tokens + report.output_tokens,
        input_token_details=InputTokenDetails(cache_read=cached),
    )


def _metadata(reply: Reply, origin: Origin) -> dict[str, Any]:
    report = reply.report
    return {
        "model_name": origin.model,
        "finish_reason": "tool_calls" if reply.tool_calls else reply.finish_reason,
        "agentrt": {
            "program_id": reply.program_id,
            "node": reply.node,
            "service_s": report.service_s,
            "waiting_s": report.waiting_s,
            "preemptions": report.preemptions,
        },
    }
