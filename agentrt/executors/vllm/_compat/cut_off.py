"""Makes vLLM's parsers read the same from a whole output and from its stream, even if the output
was cut off.

Most of vLLM's parsers lose calls, names or arguments when several tokens arrive at once. Such
parsers get one token at a time (`token_texts`). Some parsers stream wrong calls even then; their
calls are read from the whole output (`held_calls`).

From a whole output, vLLM's parsers turn a truncated tool call into text with markup, or into a call
that looks complete but lacks arguments, and an agent would run that call. Here the whole answer has
the same text and calls as the stream, and the ``finish_reason`` is unchanged. A gpt-oss message
whose header was cut off is empty; vLLM would return the header as text.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import regex
from vllm.entrypoints.generate.base.protocol import (
    DeltaMessage,
    DeltaToolCall,
    FunctionCall,
    ToolCall,
)
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.parser.abstract_parser import DelegatingParser
from vllm.renderers.chat_utils import make_tool_call_id

from agentrt.executors.vllm._compat.held_calls import (
    BEGINNINGS,
    MARKS,
    InChatForm,
    add_call,
    chat_tools,
    completing,
    holding,
    reading_text,
)
from agentrt.executors.vllm._compat.token_texts import Joined, TokenTexts, keep_order, together

_HEADER = re.compile(
    r"(<\|start\|>(assistant)?)?( to(=[^\s<]*)?)?(<\|channel\|>\w*)?( to(=[^\s<]*)?)?"
    r"( ?(<\|constrain\|>)?\w*)?"
)
"""The header of a message in harmony's format (gpt-oss), complete or cut off anywhere."""

_Base: Any = object  # stands for the parser class that is mixed in behind ours
_MAY_CALL = re.compile("tool|call|invoke|function", re.IGNORECASE)
"""A pattern that matches in every tool call which a parser on vLLM's parser engine reads."""
_RECENT = 32
"""How many of a prompt's last tokens are checked for the end of reasoning."""
_LONGEST = 64
"""Maximum number of characters of the mark that begins a tool call."""
_FRAMED = ("KimiK3ToolParser", "MuseGlimmerToolParser")
"""Parsers that extract not only calls from markup, but also the text of an answer."""
_ANSWERS_AT_ONCE: dict[str, Any] = {
    "KimiK3ReasoningParser": regex.compile(r"\s*<\|open\|>\s*(?:response|tools)\s*<\|sep\|>"),
}
"""A pattern for the beginning of an output without reasoning, for parsers whose streams would read
all of such an output as reasoning.
"""


def read_cut_off(state: Any, model_config: Any, tokenizer: Any) -> None:
    """Make all APIs in ``state``, the state of vLLM's application, parse an output that was cut off
    as they parse its stream.
    """
    ends = _ends(model_config, tokenizer)
    # 0.32 does not read this option of a model's generation_config.json.
    skips_special = bool(model_config.get_diff_sampling_param().get("skip_special_tokens", True))
    for name, finish in (
        ("openai_serving_chat", _with_calls),
        ("anthropic_serving_messages", _with_complete_calls),
    ):
        serving = getattr(state, name, None)
        if serving is not None and serving.parser_cls is not None:
            serving.parser_cls = reader_of(serving.parser_cls, ends, skips_special)
            serving._finalize_response_message = finish
    responses = getattr(state, "openai_serving_responses", None)
    if responses is not None and responses.parser is not None:
        responses.parser = reader_of(responses.parser, ends, skips_special)


def _ends(model_config: Any, tokenizer: Any) -> frozenset[int]:
    """Return the token ids with which the model itself ends an output."""
    eos_token_id = model_config.try_get_generation_config().get("eos_token_id")
    ends = eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]
    return frozenset([*ends, tokenizer.eos_token_id]) - {None}


def reader_of(parser: type[Any], ends: frozenset[int], skips_special: bool = True) -> type[Any]:
    """Return a subclass of ``parser`` that reads the same from a whole output and from its stream.

    The result does not depend on which tokens of a stream arrive together. An output that was cut
    off is read as its stream. ``ends`` are the token ids with which the model itself ends an
    output. ``skips_special`` says whether special tokens have no text if a request does not say it.
    """
    tools, name = parser.tool_parser_cls, _name(parser.tool_parser_cls)
    is_delegating = issubclass(parser, DelegatingParser) and parser.parse is DelegatingParser.parse
    fields = {
        "ends": ends,
        "skips_special": skips_special,
        "beginning": regex.compile(BEGINNINGS[name]) if name in BEGINNINGS else None,
        "is_delegating": is_delegating,
        "is_legacy": is_delegating and tools is not None and not tools.engine_based_streaming,
        "is_plain": parser.parse_delta is DelegatingParser.parse_delta,
    }
    if is_delegating:
        parser = reading_text(parser)
        parser = holding(parser, ends) if name in MARKS else completing(parser, ends)
    return type("Reader", (_Alike, parser), fields)


class _Alike(_Base):
    """A mix-in that makes a parser read the same from a whole output and from its stream.

    It must come before the parser's class among the base classes.

    ``ends`` and ``skips_special`` are those of `reader_of`. ``beginning`` matches the
    beginning of a call, for parsers that find some calls only in a stream. ``is_delegating`` says
    that the parser is vLLM's `DelegatingParser`, a pair of a reasoning parser and a tool parser.
    ``is_legacy`` says that the pair's tool parser is not built on vLLM's parser engine.
    ``is_plain`` says that the parser does not override `DelegatingParser.parse_delta`.
    """

    ends: frozenset[int] = frozenset()
    skips_special = True
    beginning: Any = None
    is_delegating = False
    is_legacy = False
    is_plain = False
    cut_calls: Sequence[FunctionCall] = ()
    _prompt: Sequence[int] = ()

    def __init__(self, tokenizer: Any, tools: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, chat_tools(tools) if self.is_legacy else tools, *args, **kwargs)
        parts = (self._reasoning_parser, self._tool_parser) if self.is_delegating else (self,)
        for part in parts:
            keep_order(part)
        self._again = partial(type(self), tokenizer, tools, *args, **kwargs)
        self._is_used = False
        self._texts: TokenTexts | None = None
        self._chat_form: InChatForm | None = None
        self._read = super().parse_delta
        self._by_token: tuple[bool, bool] | None = None
        self._reasoning_ends: frozenset[int] = frozenset()
        self._is_begun = _name(self.tool_parser_cls) in _FRAMED
        self._names: set[int] = set()
        self._unnamed: dict[int, list[DeltaToolCall]] = {}
        self._blank = ""
        self._has_text = self._has_calls = self._holds_blanks = False
        self._is_by_token = self.is_delegating and not self._engine_based
        self._answer_mark = _ANSWERS_AT_ONCE.get(_name(self.reasoning_parser_cls))
        self._first: tuple[str, list[int]] = "", []

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
        self.cut_calls = ()
        is_cut = bool(ids) and ids[-1] not in self.ends and ids[-1] not in (_stops(request) or ())
        may_call = enable_auto_tools and request.tools and request.tool_choice != "none"
        if self.is_delegating and self._engine_based:
            prompt = list(self._prompt[-_RECENT:])
            is_streamed = (
                is_cut
                or _MAY_CALL.search(model_output) is not None
                or (bool(prompt) and self.is_reasoning_end(prompt))
            )
        else:
            may_stream = may_call and self.tool_parser is not None
            if self._is_by_token:
                is_streamed = bool(self._reasoning_parser or may_stream)
            else:
                is_streamed = may_stream and is_cut
        if not ids or not is_streamed:
            reasoning, content, calls = super().parse(model_output, request, enable_auto_tools, ids)
            is_missed = may_call and not calls and self.beginning is not None
            if not is_missed or not self.beginning.search(content or ""):
                is_blank = calls and content and content.isspace()
                return reasoning, None if is_blank else content, calls
        reasoning, content, calls = self._as_streamed(model_output, ids, request)
        if calls and self._is_by_token and not is_cut:
            # Stock vLLM returns the arguments as this parser writes JSON, not as the model wrote
            # them.
            with suppress(Exception):  # a parser may fail on an output that its stream can read
                parse = super(_Alike, self._again()).parse
                whole = parse(model_output, request, enable_auto_tools, ids)
                if whole[:2] == (reasoning, content) and _mean_the_same(whole[2] or (), calls):
                    calls = whole[2]
        is_length = is_cut and not _ends_by_text(self.model_tokenizer, ids, request)
        if isinstance(request, ResponsesRequest) or not is_length or not calls:
            return reasoning, content, calls
        # These calls are not in the result, because vLLM would treat them as complete.
        # `_with_calls` adds them.
        self.cut_calls = calls
        return reasoning, content, None

    def _as_streamed(self, text: str, ids: list[int], request: Any) -> Any:
        """Read a whole output as a stream of one piece.

        A parser keeps the state of the stream that it has read, so each further output gets a new
        parser.
        """
        reader, self._is_used = self._again() if self._is_used else self, True
        delta = reader.parse_delta(
            text, ids, request, prompt_token_ids=list(self._prompt), finished=True
        )
        return _read_of(delta)

    def parse_delta(
        self,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: list[int] | None = None,
        *,
        finished: bool,
    ) -> Any:
        """Read the next piece of a stream, one token at a time if the parser needs that."""
        if self._answer_mark is not None:
            delta_text, delta_token_ids = (
                self._first[0] + delta_text,
                [
                    *self._first[1],
                    *delta_token_ids,
                ],
            )
            mark = self._answer_mark.match(delta_text, partial=True)
            if mark is not None and mark.partial and not finished:
                self._first = delta_text, delta_token_ids
                return None
            self._answer_mark = None
            self._stream_state.reasoning_ended = mark is not None and not mark.partial
        if self._by_token is None:
            self._by_token = self._begin_stream(request, prompt_token_ids)
        texts = self._texts
        if texts is None:
            delta = self._read(
                delta_text, delta_token_ids, request, prompt_token_ids, finished=finished
            )
        elif len(delta_token_ids) < 2 or not self._needs_tokens(delta_text, delta_token_ids):
            texts.undecoded += delta_token_ids
            delta = self._read(
                delta_text, delta_token_ids, request, prompt_token_ids, finished=finished
            )
        else:
            delta = self._read_joined(
                delta_text, delta_token_ids, request, prompt_token_ids, finished=finished
            )
        if delta is not None and delta.tool_calls and self.is_delegating:
            # A request without tools gets no calls, as in a whole answer.
            delta.tool_calls = self._named(delta.tool_calls) if request.tools else []
            if not (delta.tool_calls or delta.content or delta.reasoning):
                delta = None
        if self._has_text or not self._holds_blanks:
            return delta
        return self._without_blanks(delta, finished=finished)

    def _begin_stream(self, request: Any, prompt: Sequence[int] | None) -> tuple[bool, bool]:
        """Prepare the parser for the stream of a request. Return whether the stream's tokens are
        read one at a time, as a pair: for the tokens of the reasoning, and for the later tokens.
        """
        if not self.is_delegating:
            return False, False
        self._holds_blanks = bool(request.tools)
        if request.tool_choice not in (None, "auto", "none"):
            self._stream_state.engine_based = False  # JSON is parsed with all text before it
        if self.is_legacy and isinstance(request, ResponsesRequest):
            form, read = self._in_chat_form(request), self._tool_parser.extract_tool_calls_streaming
            self._tool_parser.extract_tool_calls_streaming = lambda *pieces: read(
                *pieces[:-1], form
            )
        if getattr(request, "stop", None):
            texts = self._new_texts(prompt, request)
            self._read = partial(self._read_in_time, texts)
            return False, False
        if self._engine_based:
            if not request.tools and getattr(self._tool_parser, "needs_tools", False):
                # This stream needs no correction.
                self.parse_delta = self._read  # type: ignore[method-assign]
                return False, False
            self._reasoning_ends = getattr(
                self._reasoning_parser, "reasoning_end_token_ids", frozenset()
            )
            if self._reasoning_parser is None:
                return False, False
            self._texts = self._new_texts(prompt, request)
            return True, False
        if self.is_plain and self._reasoning_parser is None and self._passes_text(request):
            # Such a stream is only text, which vLLM passes on as it is. The method is replaced on
            # the instance, so that the check is not made again for each further token.
            self.parse_delta = partial(  # type: ignore[method-assign]
                DelegatingParser.parse_delta, self
            )
            return False, False
        self._texts = self._new_texts(prompt, request)
        reads_calls = bool(request.tools) and request.tool_choice != "none"
        is_held = _name(self.tool_parser_cls) in MARKS
        after = reads_calls and self.tool_parser is not None and not is_held
        return after or self._reasoning_parser is not None, after

    def _new_texts(self, prompt: Sequence[int] | None, request: Any) -> TokenTexts:
        return TokenTexts(self.model_tokenizer, prompt, request, skips_special=self.skips_special)

    def _passes_text(self, request: Any) -> bool:
        """Return whether vLLM looks for no tool calls in the answer of a request, so that its
        streams pass on the text unchanged.
        """
        return not request.tools and (self._tool_parser is None or request.tool_choice == "none")

    def _needs_tokens(self, text: str, ids: list[int]) -> bool:
        """Return whether the tokens ``ids``, with this ``text``, must be read one at a time."""
        assert self._by_token is not None
        has_ended = self._stream_state.reasoning_ended
        if not self._by_token[has_ended]:
            return False
        if self._reasoning_ends:
            return not self._reasoning_ends.isdisjoint(ids)
        if has_ended and self.beginning is not None and not self._is_begun:
            recent = self._stream_state.previous_text[-_LONGEST:] + text
            mark = self.beginning.search(recent, partial=True)
            self._is_begun = mark is not None and not mark.partial
            return mark is not None
        return True

    def _read_joined(
        self, text: str, ids: list[int], request: Any, prompt: list[int] | None, *, finished: bool
    ) -> Any:
        """Read several tokens: one at a time while the parser needs single tokens, and then all
        remaining tokens at once.
        """
        assert self._texts is not None
        assert self._by_token is not None
        joined, pieces = Joined(), deque(self._texts.split(text, ids))
        while pieces:
            piece, tokens = pieces.popleft()
            if not self._by_token[self._stream_state.reasoning_ended]:
                piece += "".join(later for later, _ in pieces)
                tokens = ids[len(ids) - len(pieces) - 1 :]
                pieces.clear()
            is_last = finished and not pieces
            joined.add(self._read(piece, tokens, request, prompt, finished=is_last))
        return joined.delta

    def _read_in_time(
        self,
        texts: TokenTexts,
        text: str,
        ids: list[int],
        request: Any,
        prompt: list[int] | None,
        *,
        finished: bool,
    ) -> Any:
        """Read the tokens whose text has arrived. With stop strings, the text of a token may arrive
        after the token.
        """
        joined, pieces = Joined(), texts.in_time(text, ids, finished=finished)
        for index, (piece, tokens) in enumerate(pieces, 1):
            is_last = finished and index == len(pieces)
            read = super().parse_delta(piece, tokens, request, prompt, finished=is_last)
            joined.add(read)
        return joined.delta

    def _named(self, calls: Sequence[DeltaToolCall]) -> list[DeltaToolCall]:
        """Return the pieces of the calls whose names have arrived. The pieces of a call are held
        back until its name has arrived, because clients cannot read a call without a name.
        """
        named = []
        for piece in calls:
            call = piece
            if call.index not in self._names:
                (call,) = together([*self._unnamed.pop(call.index, ()), call])
                if call.function is None or not call.function.name:
                    self._unnamed[call.index] = [call]
                    continue
                self._names.add(call.index)
            named.append(call)
        return named

    def _without_blanks(self, delta: Any, *, finished: bool) -> Any:
        """Hold leading blanks back until other text follows. If only calls follow, the blanks are
        dropped; if nothing follows, they are added at the end.
        """
        if delta is not None:
            self._has_calls |= bool(delta.tool_calls)
            text = self._blank + (delta.content or "")
            self._has_text = bool(text.strip())
            if text and not self._has_text:
                self._blank, delta.content = text, None
                if not (delta.reasoning or delta.tool_calls):
                    delta = None
            elif self._blank:
                delta.content = text
        if finished and self._blank and not (self._has_text or self._has_calls):
            delta = delta or DeltaMessage()
            delta.content = self._blank
        return delta

    def extract_reasoning(self, model_output: str, request: Any) -> Any:
        # After a prompt that ends the reasoning, the output has no reasoning, as in a stream.
        if self._is_by_token and self._prompt and self.is_reasoning_end(list(self._prompt)):
            return None, model_output
        return super().extract_reasoning(model_output, request)

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        return super().extract_tool_calls(model_output, self._in_chat_form(request))

    def _in_chat_form(self, request: Any) -> Any:
        if not self.is_legacy or not isinstance(request, ResponsesRequest):
            return request
        if self._chat_form is None:
            self._chat_form = InChatForm(request)
        return self._chat_form

    def _extract_tool_calls(
        self, content: str | None, request: Any, enable_auto_tools: bool = False
    ) -> Any:
        is_other = self.is_legacy or _name(self.tool_parser_cls) in MARKS
        if not self._is_by_token or is_other or not enable_auto_tools:
            return super()._extract_tool_calls(content, request, enable_auto_tools)
        # vLLM would return a text without calls unchanged, with the markup around it.
        ids = self.model_tokenizer.encode(content or "", add_special_tokens=False)
        joined = Joined()
        joined.add(
            self._extract_tool_calls_streaming(
                "", content or "", content or "", [], ids, ids, request
            )[0]
        )
        joined.add(self._tool_parser.finish_streaming())
        return _read_of(joined.delta)[1:][::-1]

    def flush(self) -> list[Any]:
        """Return the remaining part of a harmony message that did not end, unless this part is only
        the header.
        """
        segments: list[Any] = super().flush()
        is_header = segments and segments[0].delta and _HEADER.fullmatch(segments[0].delta)
        return [] if is_header else segments

    def _append_unstreamed_tool_args(self, delta_message: Any) -> None:
        # vLLM would add "{}" for a call that was cut off before its arguments.
        calls = getattr(self._tool_parser, "prev_tool_call_arr", ())
        if all("arguments" in call for call in calls[-1:]):
            super()._append_unstreamed_tool_args(delta_message)


def _name(parser: type[Any] | None) -> str:
    return "" if parser is None else parser.__name__


def _read_of(delta: Any) -> tuple[str | None, str | None, list[FunctionCall]]:
    """Return the reasoning, the text and the calls of a whole output that is one delta."""
    if delta is None:
        return None, None, []
    calls: dict[int, FunctionCall] = {}
    for call in delta.tool_calls or ():
        add_call(calls, call)
    return delta.reasoning or None, delta.content or None, [calls[i] for i in sorted(calls)]


def _mean_the_same(calls: Sequence[FunctionCall], others: Sequence[FunctionCall]) -> bool:
    """Return whether two lists of calls differ at most in the form of their arguments' JSON."""
    return [(call.name, _value_of(call)) for call in calls] == [
        (call.name, _value_of(call)) for call in others
    ]


def _value_of(call: FunctionCall) -> Any:
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


def _stops(request: Any) -> Sequence[int] | None:
    return getattr(request, "stop_token_ids", None)


def _ends_by_text(tokenizer: Any, ids: list[int], request: Any) -> bool:
    """Return whether one of the request's stop strings ended an output."""
    stops = getattr(request, "stop", None) or ()
    stops = [stops] if isinstance(stops, str) else stops
    longest = max(map(len, stops), default=0)
    tail = tokenizer.decode(ids[-longest - 8 :]) if longest else ""
    return any(stop in tail for stop in stops)


def _with_calls(message: Any, parser: Any = None) -> Any:
    """Add the calls that were cut off to a chat's message, and return the message."""
    for call in getattr(parser, "cut_calls", ()):
        made = ToolCall(id=call.id or make_tool_call_id(), function=call)
        message.tool_calls = [*message.tool_calls, made]
    return message


def _with_complete_calls(message: Any, parser: Any = None) -> Any:
    """Add the calls that were cut off to a chat's message, and return the message. Shorten
    arguments that were cut off, so that they are valid JSON.

    Anthropic's API has arguments as an object, and vLLM would answer with an error if the model's
    arguments are not valid JSON.
    """
    message = _with_calls(message, parser)
    for call in message.tool_calls:
        arguments = json.dumps(_as_far_as_json(call.function.arguments), ensure_ascii=False)
        # The arguments may have halves of surrogate pairs, which cannot be sent.
        call.function.arguments = arguments.encode("utf-8", "replace").decode()
    return message


def _as_far_as_json(arguments: str) -> dict[str, Any]:
    from jiter import from_json

    value = None
    try:
        # jiter refuses arguments with line breaks in strings, and with halves of surrogate pairs.
        value = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        with suppress(ValueError):
            value = from_json(arguments.encode(), partial_mode=True)
    return value if isinstance(value, dict) else {}
