"""Converting answers in OpenAI's form into LangChain messages, whole or as chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.json import parse_partial_json

from agentrt.executors.chat_api import Answer
from agentrt.executors.replies import reply_of
from agentrt.integrations.langchain.calls import ACCOUNT
from agentrt.request import Reply

PROVIDER = "agentrt"
_THOUGHT = "reasoning_content"
"""The field from which LangChain takes the reasoning of ``AIMessage.content_blocks``."""


def as_result(answer: Answer) -> ChatResult:
    """Return the result of a call without streaming: a generation for each choice."""
    whole = reply_of(answer)
    pairs = zip(whole.choices or (whole,), answer["choices"], strict=True)
    generations = [_generation(reply, choice, answer) for reply, choice in pairs]
    output = {"token_usage": answer.get("usage") or {}, "model_name": answer.get("model")}
    return ChatResult(generations=generations, llm_output=output)


def _generation(reply: Reply, choice: Mapping[str, Any], answer: Answer) -> ChatGeneration:
    message = AIMessage(
        content=reply.text,
        additional_kwargs={_THOUGHT: reply.reasoning} if reply.reasoning else {},
        tool_calls=[
            ToolCall(name=call.name, args=call.arguments, id=call.id, type="tool_call")
            for call in reply.tool_calls
        ],
        invalid_tool_calls=[
            InvalidToolCall(
                name=call.name,
                args=call.arguments,
                id=call.id,
                error="the arguments are not a JSON object: they were cut off or are malformed",
                type="invalid_tool_call",
            )
            for call in reply.invalid_tool_calls
        ],
        usage_metadata=_usage(answer.get("usage")),
        response_metadata=_metadata(answer),
    )
    return ChatGeneration(message=message, generation_info=_ending(choice))


@dataclass(slots=True)
class ChunkMaker:
    """A converter of an answer's chunks into message chunks. ``with_usage`` adds the token counts
    to the last chunk.

    ``first_index`` is the index of the first tool call. With ``output_version`` "v1", LangChain
    puts tool calls into the same list as other blocks. The indices of the other blocks start at 0,
    so those of tool calls must be higher.
    """

    with_usage: bool = True
    first_index: int = 0
    _model: dict[str, Any] = field(default_factory=dict)
    _usage: Any = None
    _ending: dict[str, Any] = field(default_factory=dict)
    _arguments: dict[int, str] = field(default_factory=dict)

    def chunks(self, piece: Answer) -> Iterator[ChatGenerationChunk]:
        """Yield the message chunks of a piece. The last chunk is marked as the last, and has the
        values that are known only at the end.
        """
        self._model = piece if piece.get("model") else self._model
        self._usage = piece.get("usage") or self._usage
        for choice in piece.get("choices") or ():
            self._ending |= _ending(choice, logprobs=False)
            yield from self._delta(choice)
        if ACCOUNT in piece:
            yield self._last(piece)

    def _delta(self, choice: Mapping[str, Any]) -> Iterator[ChatGenerationChunk]:
        delta = choice.get("delta") or {}
        thought = delta.get("reasoning") or delta.get(_THOUGHT)
        calls = [self._call(call) for call in delta.get("tool_calls") or ()]
        logprobs = {"logprobs": choice["logprobs"]} if choice.get("logprobs") else {}
        if not (delta.get("content") or thought or calls or logprobs):
            return
        message = AIMessageChunk(
            content=delta.get("content") or "",
            additional_kwargs={_THOUGHT: thought} if thought else {},
            tool_call_chunks=calls[:1],
        )
        for call in calls[1:]:  # LangChain merges parts of a call only from different messages
            message += AIMessageChunk(content="", tool_call_chunks=[call])
        yield ChatGenerationChunk(message=message, generation_info=logprobs or None)

    def _call(self, call: Mapping[str, Any]) -> ToolCallChunk:
        index = self.first_index + (call.get("index") or 0)
        function = call.get("function") or {}
        text = function.get("arguments") or ""
        self._arguments[index] = self._arguments.get(index, "") + text
        return tool_call_chunk(name=function.get("name"), args=text, id=call.get("id"), index=index)

    def _last(self, piece: Answer) -> ChatGenerationChunk:
        # Without arguments, some servers send no text. At a limit, the text may also be cut off.
        is_cut = self._ending.get("finish_reason") == "length"
        broken = [
            tool_call_chunk(args=_impossible_end(text), index=index)
            for index, text in self._arguments.items()
            if not (_is_whole(text) or (not text and not is_cut))
        ]
        message = AIMessageChunk(
            content="",
            tool_call_chunks=broken,
            usage_metadata=_usage(self._usage) if self.with_usage else None,
            response_metadata=_metadata({**self._model, **piece}),
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message, generation_info=self._ending or None)


def _is_whole(arguments: str) -> bool:
    return isinstance(_value(arguments, strict=True), dict)


def _impossible_end(arguments: str) -> str:
    """Return text that makes the arguments of a truncated call invalid.

    LangChain would complete truncated arguments by a guess, and an agent would run the call. Only
    a bracket that closes nothing prevents this.
    """
    ends = (quote + bracket for quote in ("", '"', '""') for bracket in "]}")
    return next(end for end in ends if not isinstance(_value(arguments + end), dict))


def _value(text: str, *, strict: bool = False) -> Any:
    try:
        return json.loads(text) if strict else parse_partial_json(text)
    except (ValueError, RecursionError):
        return None


def _usage(usage: Mapping[str, Any] | None) -> UsageMetadata | None:
    if not usage:
        return None
    prompt, output = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    converted = UsageMetadata(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=prompt + output,
        # A call that is recomputed after a preemption has cache hits on its own prompt.
        input_token_details=InputTokenDetails(cache_read=min(cached, prompt)),
    )
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    if thought is not None:
        converted["output_token_details"] = OutputTokenDetails(reasoning=thought)
    return converted


def _metadata(answer: Answer) -> dict[str, Any]:
    return {
        "model_name": answer.get("model"),
        "model_provider": PROVIDER,
        ACCOUNT: answer.get(ACCOUNT) or {},
    }


def _ending(choice: Mapping[str, Any], *, logprobs: bool = True) -> dict[str, Any]:
    names = ("finish_reason", "logprobs") if logprobs else ("finish_reason",)
    return {name: choice[name] for name in names if choice.get(name) is not None}
