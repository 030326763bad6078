"""Adds tool calls to the end of a stream that vLLM's parser finds only in the whole output.

Llama's parser streams "" for missing arguments, where the whole output gives "{}", and misses calls
after another separator than "; ". The parser phi4_mini_json streams no calls at all. An agent would
lose these calls, or fail to read "" as JSON.
Parsers that vLLM builds on its own parser engine have no such gaps and are left as they are.
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
    """A class of parsers like ``parser`` that completes a stream's calls.

    ``ends`` are the tokens by which the model ends an output: what is cut off stays as it is.
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
            self, delta_text: str, delta_token_ids: list[int], request: Any, *args: Any, **more: Any
        ) -> Any:
            delta = super().parse_delta(delta_text, delta_token_ids, request, *args, **more)
            self._streamed.text |= delta is not None and bool(delta.content)
            if delta is not None and delta.tool_calls:  # a field that is set is sent
                delta.tool_calls = self._streamed.noted(delta.tool_calls)
            if more["finished"] and delta_token_ids and delta_token_ids[-1] in ends:
                delta = _with_calls(delta, self._left_out(request))
            return delta

        def _left_out(self, request: Any) -> list[DeltaToolCall]:
            state, streamed = self._stream_state, self._streamed
            asked = request.tools and request.tool_choice in (None, "auto")
            answered = streamed.text and not streamed.calls
            if not asked or answered or not self._in_tool_call_phase(state):
                return []
            reader = type(self.tool_parser)(self.model_tokenizer, request.tools)
            found = reader.extract_tool_calls(state.previous_text, request)
            whole = [one.function for one in found.tool_calls]
            return streamed.left_out(whole, self._make_tool_call_id)

    return Completing


class _Streamed:
    """The calls of a stream so far, as far as they were said, and if there was ``text``."""

    def __init__(self) -> None:
        self.text = False
        self.calls: list[FunctionCall] = []

    def noted(self, deltas: Sequence[DeltaToolCall]) -> list[DeltaToolCall]:
        """These deltas, and before one that begins a call, the arguments that it has not had."""
        noted: list[DeltaToolCall] = []
        for delta in deltas:
            while delta.index >= len(self.calls):
                if self.calls and not self.calls[-1].arguments:
                    noted.append(_of(len(self.calls) - 1, arguments="{}"))
                self.calls.append(FunctionCall(name="", arguments=""))
            if (said := delta.function) is not None:
                call = self.calls[delta.index]
                call.name += said.name or ""
                call.arguments += said.arguments or ""
            noted.append(delta)
        return noted

    def left_out(
        self, whole: Sequence[FunctionCall], make_id: Callable[[str], str | None]
    ) -> list[DeltaToolCall]:
        """What the ``whole`` output has more, if it begins with the same calls."""
        count = len(self.calls)
        if [call.name for call in whole[:count]] != [call.name for call in self.calls]:
            return []
        left: list[DeltaToolCall] = []
        if self.calls and not self.calls[-1].arguments:
            left.append(_of(count - 1, arguments=whole[count - 1].arguments))
        for index, call in enumerate(whole[count:], count):
            begun = _of(index, name=call.name, arguments=call.arguments)
            begun.id, begun.type = make_id(call.name) or make_tool_call_id(), "function"
            left.append(begun)
        return left


def _of(index: int, **said: str) -> DeltaToolCall:
    return DeltaToolCall(index=index, function=DeltaFunctionCall(**said))


def _with_calls(delta: Any, calls: Sequence[DeltaToolCall]) -> Any:
    if calls:
        delta = delta or DeltaMessage()
        delta.tool_calls = [*delta.tool_calls, *calls]
    return delta
