"""Makes vLLM read an output that was cut off in the same way whole and streamed.

In a whole answer its parsers turn a truncated tool call into text with markup, or into a call that
looks complete but lacks arguments, which an agent would run. In a stream they give a call with the
arguments so far. Here the whole answer gets what the stream has, and ``finish_reason`` stays. A
gpt-oss message whose header was cut off is empty; vLLM gives its header as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import FunctionCall, ToolCall
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.renderers.chat_utils import make_tool_call_id

from agentrt.executors.vllm._compat.complete_calls import completing

_HEADER = re.compile(
    r"(<\|start\|>(assistant)?)?( to(=[^\s<]*)?)?(<\|channel\|>\w*)?( to(=[^\s<]*)?)?"
    r"( ?(<\|constrain\|>)?\w*)?"
)
"""The begin of a message in harmony's format, wherever it ends."""


def read_cut_off(state: Any, model_config: Any, tokenizer: Any) -> None:
    """Make the front end of ``state`` read whole outputs so."""
    ends = _ends(model_config, tokenizer)
    for name, finish in (
        ("openai_serving_chat", _with_calls),
        ("anthropic_serving_messages", _with_complete_calls),
    ):
        serving = getattr(state, name, None)
        if serving is not None and serving.parser_cls is not None:
            serving.parser_cls = reader_of(serving.parser_cls, ends)
            serving._finalize_response_message = finish
    responses = getattr(state, "openai_serving_responses", None)
    if responses is not None and responses.parser is not None:
        responses.parser = reader_of(responses.parser, ends)


def _ends(model_config: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens by which the model itself ends an output."""
    told = model_config.try_get_generation_config().get("eos_token_id")
    ends = told if isinstance(told, list) else [told]
    return frozenset([*ends, tokenizer.eos_token_id]) - {None}


def reader_of(parser: type[Any], ends: frozenset[int]) -> type[Any]:
    """A class of parsers like ``parser`` that reads what was cut off as its stream.

    And completes a stream's calls, if it was not (`complete_calls`).
    """

    class Reader(completing(parser, ends)):  # type: ignore[misc]
        cut_calls: Sequence[FunctionCall] = ()
        _prompt: Sequence[int] = ()

        def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
            self._prompt = prompt_token_ids
            super().set_prompt_token_ids(prompt_token_ids)

        def parse(
            self,
            model_output: str,
            request: Any,
            enable_auto_tools: bool = False,
            model_output_token_ids: Sequence[int] = (),
        ) -> Any:
            ids = list(model_output_token_ids)
            may_call = enable_auto_tools and request.tools and request.tool_choice != "none"
            ended = not ids or ids[-1] in ends or ids[-1] in (_stops(request) or ())
            if ended or not may_call or self.tool_parser is None:
                return super().parse(model_output, request, enable_auto_tools, ids)
            pieces = [(model_output, ids)]
            if not self._engine_based:
                pieces = list(_by_token(self.model_tokenizer, model_output, ids, request))
            reasoning, content, calls = _streamed(self, pieces, request, list(self._prompt))
            if isinstance(request, ResponsesRequest):
                return reasoning, content, calls
            self.cut_calls = calls  # beside `parse`: with it they would have been complete
            return reasoning, content, None

        def flush(self) -> list[Any]:
            """What harmony's parser makes of a message that did not end."""
            segments: list[Any] = super().flush()
            is_header = segments and segments[0].delta and _HEADER.fullmatch(segments[0].delta)
            return [] if is_header else segments

        def _append_unstreamed_tool_args(self, delta_message: Any) -> None:
            # Arguments that did not begin are not "{}".
            calls = getattr(self._tool_parser, "prev_tool_call_arr", ())
            if all("arguments" in call for call in calls[-1:]):
                super()._append_unstreamed_tool_args(delta_message)

    return Reader


def _streamed(
    parser: Any, pieces: list[tuple[str, list[int]]], request: Any, prompt: list[int]
) -> tuple[str | None, str | None, list[FunctionCall]]:
    reasoning, content = "", ""
    calls: dict[int, FunctionCall] = {}
    for index, (piece, ids) in enumerate(pieces, 1):
        delta = parser.parse_delta(
            piece, ids, request, prompt_token_ids=prompt, finished=index == len(pieces)
        )
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls:
            _add(calls, call)
    return reasoning or None, content or None, [calls[index] for index in sorted(calls)]


def _by_token(
    tokenizer: Any, text: str, ids: list[int], request: Any
) -> Iterator[tuple[str, list[int]]]:
    """The pieces of ``text`` as the stream had them. Parsers built on vLLM's own engine read one
    piece as well as many; the others do not.
    """
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=getattr(request, "skip_special_tokens", True))
    at = 0
    for token in ids[:-1]:
        piece = stream.step(tokenizer._tokenizer, token) or ""
        piece = piece if text.startswith(piece, at) else ""  # a stop string ended the text
        at += len(piece)
        yield piece, [token]
    yield text[at:], ids[-1:]


def _stops(request: Any) -> Sequence[int] | None:
    return getattr(request, "stop_token_ids", None)


def _add(calls: dict[int, FunctionCall], delta: Any) -> None:
    call = calls.setdefault(delta.index, FunctionCall(name="", arguments=""))
    call.id = call.id or delta.id
    if delta.function is not None:
        call.name += delta.function.name or ""
        call.arguments += delta.function.arguments or ""


def _with_calls(message: Any, parser: Any = None) -> Any:
    """The message of a chat with the calls that were cut off."""
    for call in getattr(parser, "cut_calls", ()):
        made = ToolCall(id=call.id or make_tool_call_id(), function=call)
        message.tool_calls = [*message.tool_calls, made]
    return message


def _with_complete_calls(message: Any, parser: Any = None) -> Any:
    """The same with arguments as far as they are JSON, which Anthropic's form has as an object:
    vLLM refuses a request because of what the model wrote.
    """
    message = _with_calls(message, parser)
    for call in message.tool_calls:
        call.function.arguments = json.dumps(_as_far_as_json(call.function.arguments))
    return message


def _as_far_as_json(arguments: str) -> dict[str, Any]:
    from jiter import from_json

    try:
        found = from_json(arguments.encode(), partial_mode=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
