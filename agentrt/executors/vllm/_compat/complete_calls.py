"""Adds to the end of a stream the tool calls that vLLM's parser finds only in the whole output.

A parser may stream "" for missing arguments, but read "{}" from the whole output, or miss calls in
a stream. An agent would fail to read "" as JSON, or lose these calls. The parsers in
`held_calls.MARKS`, whose streams are known to be wrong, are corrected there and not here. Parsers
that vLLM builds on its own parser engine do not have this fault and are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    FunctionCall,
)
from vllm.parser.abstract_parser import DelegatingParser
from vllm.renderers.chat_utils import make_tool_call_id


def completing(parser: type[Any], ends: frozenset[int]) -> type[Any]:
    """Return a subclass of ``parser`` that adds the calls that the parser's streams miss.

    Returns ``parser`` itself if it has no tool parser, if its tool parser is built on vLLM's parser
    engine, or if it overrides `DelegatingParser.parse_delta`.

    ``ends`` are the token ids with which the model itself ends an output. Nothing is added to an
    output that ends with another token, since it was cut off.
    """
    tools = parser.tool_parser_cls
    if tools is None or tools.engine_based_streaming:
        return parser
    if parser.parse_delta is not DelegatingParser.parse_delta:
        return parser

    class Completing(parser):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._streamed = _Streamed()

        def parse_delta(
            self,
            delta_text: str,
            delta_token_ids: list[int],
            request: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            delta = super().parse_delta(delta_text, delta_token_ids, request, *args, **kwargs)
            self._streamed.text |= delta is not None and bool(delta.content)
            if delta is not None and delta.tool_calls:  # vLLM sends each field that was set
                delta.tool_calls = self._streamed.recorded(delta.tool_calls)
            if kwargs["finished"] and delta_token_ids and delta_token_ids[-1] in ends:
                delta = _with_calls(delta, self._left_out(request))
            return delta

        def _left_out(self, request: Any) -> list[DeltaToolCall]:
            state, streamed = self._stream_state, self._streamed
            may_call = request.tools and request.tool_choice in (None, "auto")
            is_answer = streamed.text and not streamed.calls
            if not may_call or is_answer or not self._in_tool_call_phase(state):
                return []
            reader = type(self.tool_parser)(self.model_tokenizer, request.tools)
            extracted = reader.extract_tool_calls(state.previous_text, request)
            whole = [call.function for call in extracted.tool_calls]
            return streamed.left_out(whole, self._make_tool_call_id)

    return Completing


class _Streamed:
    """The calls that were streamed so far, and whether any ``text`` was streamed."""

    def __init__(self) -> None:
        self.text = False
        self.calls: list[FunctionCall] = []

    def recorded(self, deltas: Sequence[DeltaToolCall]) -> list[DeltaToolCall]:
        """Record ``deltas``, and return them with "{}" for each ended call that has no
        arguments.
        """
        completed: list[DeltaToolCall] = []
        for delta in deltas:
            while delta.index >= len(self.calls):
                if self.calls and not self.calls[-1].arguments:
                    completed.append(_delta_of(len(self.calls) - 1, arguments="{}"))
                self.calls.append(FunctionCall(name="", arguments=""))
            if (function := delta.function) is not None:
                call = self.calls[delta.index]
                call.name += function.name or ""
                call.arguments += function.arguments or ""
            completed.append(delta)
        return completed

    def left_out(
        self, whole: Sequence[FunctionCall], make_id: Callable[[str], str | None]
    ) -> list[DeltaToolCall]:
        """Return deltas for the calls of the ``whole`` output that were not streamed.

        The result is empty if the first calls of the whole output have other names than the
        streamed calls.
        """
        count = len(self.calls)
        if [call.name for call in whole[:count]] != [call.name for call in self.calls]:
            return []
        left: list[DeltaToolCall] = []
        if self.calls and not self.calls[-1].arguments:
            left.append(_delta_of(count - 1, arguments=whole[count - 1].arguments))
        for index, call in enumerate(whole[count:], count):
            delta = _delta_of(index, name=call.name, arguments=call.arguments)
            delta.id, delta.type = make_id(call.name) or make_tool_call_id(), "function"
            left.append(delta)
        return left


def _delta_of(index: int, **fields: str) -> DeltaToolCall:
    return DeltaToolCall(index=index, function=DeltaFunctionCall(**fields))


def _with_calls(delta: Any, calls: Sequence[DeltaToolCall]) -> Any:
    if calls:
        delta = delta or DeltaMessage()
        delta.tool_calls = [*delta.tool_calls, *calls]
    return delta
