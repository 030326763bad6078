"""Holds the tool calls of a stream back for parsers that read them correctly only in a whole
output, and adds the calls that a parser's stream misses.

Many of vLLM's tool parsers lose calls, names or arguments in a stream, or stream the markup of a
call as text, although they read a whole output correctly. `MARKS` lists these parsers. Their
streams send text up to the mark that begins the first call, and hold all later text back. At the
output's end, the parser reads the calls from the whole output. If a call was cut off, its arguments
are those that the parser streams when it gets one token after another.

`THOUGHTS` lists the reasoning parsers whose streams differ from their whole outputs;
`TextReasoning` replaces these parsers.

Parsers that are not in `MARKS` may stream "" for missing arguments, but read "{}" from the whole
output, or miss calls in a stream. An agent would fail to read "" as JSON, or lose these calls.
`completing` adds the calls at the end of the stream. Parsers that vLLM builds on its own parser
engine do not have this fault and are not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import regex
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    FunctionCall,
    FunctionDefinition,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.parser.abstract_parser import DelegatingParser
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser
from vllm.renderers.chat_utils import make_tool_call_id

from agentrt.executors.vllm._compat.token_texts import TokenTexts

_LOG = logging.getLogger(__name__)
_Base: Any = object  # stands for the parser class that is mixed in behind ours
_RECENT = 64
"""How many of a prompt's last tokens are checked for the end of reasoning."""

MARKS: dict[str, str] = {
    "ApertusToolParser": r"<\|tools_prefix\|>",
    "DotsToolParser": "<dots_function_call>",
    "Ernie45ToolParser": "<tool_call>",
    "FunctionGemmaToolParser": "<start_function_call>",
    "Granite20bFCToolParser": "<function_call>",
    "Granite4ToolParser": "<tool_call>",
    "HYV3ToolParser": r"<tool_calls(?::[^\s>]*)?>",
    "HYV4ToolParser": r"<tool_calls(?::[^\s>]*)?>",
    "HunyuanA13BToolParser": "<tool_calls>",
    "Internlm2ToolParser": r"<\|action_start\|>",
    "JambaToolParser": "<tool_calls>",
    "K2HorizonToolParser": r"<ifm\|tool_calls>",
    "Lfm2ToolParser": r"<\|tool_call_start\|>",
    "Llama3JsonToolParser": r'<\|python_tag\|>|\{\s*"(?:name|parameters|arguments|type|function)"',
    "Llama4PythonicToolParser": r"\A(?:<\|python_start\|>)?\[[a-zA-Z]+\w*\(",
    "MiniCPM5XMLToolParser": r"<function\s",
    "Olmo3PythonicToolParser": r"<function_calls>|\A\s*[a-zA-Z]+\w*\(",
    "Phi4MiniJsonToolParser": r"functools\[",
    "PoolsideV1ToolParser": "<tool_call>",
    "PythonicToolParser": r"\A\[[a-zA-Z]+\w*\(",
    "Step3ToolParser": "<｜tool_calls_begin｜>",
}
"""A pattern for the beginning of a tool call, for each class of a tool parser whose streams are
wrong.
"""

BEGINNINGS: dict[str, str] = {
    "DeepSeekV3ToolParser": "<｜tool▁calls▁begin｜>",
    "DeepSeekV31ToolParser": "<｜tool▁calls▁begin｜>",
    "Hermes2ProToolParser": "<tool_call>",
    "KimiK3ToolParser": r"<\|open\|>\s*tools\s*<\|sep\|>",
    "LongcatFlashToolParser": "<longcat_tool_call>",
    "MuseGlimmerToolParser": "<atem:",
}
"""A pattern for the beginning of a tool call, for parsers whose streams are right if tokens arrive
one by one.

If such a parser finds no call in a whole output that matches its pattern, the output is read as its
stream.
"""


@dataclass(frozen=True, slots=True)
class Thought:
    """The markup of reasoning in a model's outputs.

    ``start`` and ``end`` are patterns for the markup before and after the reasoning. ``is_implied``
    says that an output without ``start`` begins with reasoning; otherwise such an output has no
    reasoning. ``frame`` is a pattern for markup around the answer.
    """

    start: str
    end: str
    is_implied: bool
    frame: str | None = None


THOUGHTS: dict[str, Thought] = {
    "Ernie45ReasoningParser": Thought("<think>", "</think>", True, r"\s*<response>|</response>\s*"),
    "GraniteReasoningParser": Thought(
        "Here(?:'s| is) my thought process:", "Here(?:'s| is) my response:", False
    ),
    "HunyuanA13BReasoningParser": Thought(
        "<think>", "</think>", False, r"\s*<answer>\n|\n</answer>\s*"
    ),
    "Olmo3ReasoningParser": Thought("<think>", "</think>", True),
}
"""The markup for each class of a reasoning parser whose streams differ from its whole outputs."""


class TextReasoning(ReasoningParser):
    """A reasoning parser that reads only text, so that its results do not depend on which tokens
    arrive together.
    """

    def __init__(self, tokenizer: Any, thought: Thought) -> None:
        super().__init__(tokenizer)
        self._thought = thought
        self._start = regex.compile(thought.start)
        self._end = regex.compile(thought.end)
        self._is_open = self._has_ended = False
        self._text = ""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Return whether a prompt ends right after the end of reasoning."""
        text = self.model_tokenizer.decode(list(input_ids)[-_RECENT:])
        ends = [match.end() for match in self._end.finditer(text)]
        return bool(ends) and not text[ends[-1] :].strip()

    def is_reasoning_end_streaming(
        self, input_ids: Sequence[int], delta_ids: Iterable[int]
    ) -> bool:
        return self._has_ended

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return []

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        reader = TextReasoning(self.model_tokenizer, self._thought)
        reasoning, content = reader._read(model_output)
        last_reasoning, last_content = reader.finish()
        return reasoning + last_reasoning or None, content + last_content or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        reasoning, content = self._read(delta_text)
        if not reasoning and not content:
            return None
        return DeltaMessage(reasoning=reasoning or None, content=content or None)

    def finish(self) -> tuple[str, str]:
        """Return the reasoning and the content that were held back until the output's end."""
        rest, self._text = self._text, ""
        is_reasoning = self._is_open or self._thought.is_implied
        return (rest, "") if is_reasoning and not self._has_ended else ("", rest)

    def _read(self, piece: str) -> tuple[str, str]:
        """Return the reasoning and the content that no piece after ``piece`` can change."""
        self._text += piece
        if not self._is_open:
            match = self._start.search(self._text, partial=True)
            before = self._text if match is None else self._text[: match.start()]
            if before.strip():
                if not self._thought.is_implied:
                    return "", self._end_reasoning(0)
            elif match is None or match.partial:
                return "", ""
            else:
                self._text = self._text[match.end() :]
            self._is_open = True
        match = self._end.search(self._text, partial=True)
        certain = len(self._text) if match is None else match.start()
        reasoning = self._text[:certain]
        if match is not None and not match.partial:
            return reasoning, self._end_reasoning(match.end())
        self._text = self._text[certain:]
        return reasoning, ""

    def _end_reasoning(self, end: int) -> str:
        """Note that the reasoning is over, and return the content from ``end`` on."""
        content, self._text = self._text[end:], ""
        self._has_ended = True
        return content


def reading_text(parser: type[Any]) -> type[Any]:
    """Return a subclass of ``parser`` that uses `TextReasoning`, if the reasoning parser of
    ``parser`` is in `THOUGHTS`. Otherwise return ``parser`` itself.
    """
    thought = _thought_of(parser)
    return (
        parser if thought is None else type("Reading", (_ReadsText, parser), {"thought": thought})
    )


def holding(parser: type[Any], ends: frozenset[int]) -> type[Any]:
    """Return a subclass of ``parser`` that holds a stream's calls back.

    The tool parser of ``parser`` must be in `MARKS`. ``ends`` are the token ids with which the
    model itself ends an output.
    """
    thought = _thought_of(parser)
    fields = {
        "ends": ends,
        "mark": regex.compile(MARKS[parser.tool_parser_cls.__name__]),
        "frame": regex.compile(thought.frame) if thought and thought.frame else None,
    }
    return type("Holding", (_Holds, parser), fields)


def _thought_of(parser: type[Any]) -> Thought | None:
    reasoning = parser.reasoning_parser_cls
    return None if reasoning is None else THOUGHTS.get(reasoning.__name__)


class _ReadsText(_Base):
    """A mix-in that replaces a parser's reasoning parser by `TextReasoning`."""

    thought: Thought

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._reasoning_parser = TextReasoning(tokenizer, self.thought)

    def parse_delta(self, *args: Any, **kwargs: Any) -> Any:
        delta = super().parse_delta(*args, **kwargs)
        if kwargs["finished"]:
            reasoning, content = self._reasoning_parser.finish()
            request = args[2] if len(args) > 2 else kwargs["request"]
            if content or (reasoning and request.include_reasoning):
                delta = delta or DeltaMessage()
                delta.content = (delta.content or "") + content or None
                if request.include_reasoning:
                    delta.reasoning = (delta.reasoning or "") + reasoning or None
        return delta


class _Holds(_Base):
    """A mix-in that holds the calls of a stream back until they can be read whole."""

    ends: frozenset[int]
    skips_special: bool
    mark: Any
    frame: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held = _HeldOutput(self.mark, self.frame)
        self._is_reading: bool | None = None

    def _extract_tool_calls_streaming(
        self, *, delta_text: str, delta_token_ids: Sequence[int], request: Any, **kwargs: Any
    ) -> Any:
        if self._is_reading is None:
            self._is_reading = self._reads_calls(request)
        if self._is_reading:
            text = self._held.add(delta_text, delta_token_ids)
            return (DeltaMessage(content=text) if text else None), False
        return super()._extract_tool_calls_streaming(
            delta_text=delta_text, delta_token_ids=delta_token_ids, request=request, **kwargs
        )

    def parse_delta(
        self, delta_text: str, delta_token_ids: list[int], request: Any, *args: Any, **kwargs: Any
    ) -> Any:
        delta = super().parse_delta(delta_text, delta_token_ids, request, *args, **kwargs)
        is_tools = self._reads_calls(request) and self._in_tool_call_phase(self._stream_state)
        if not kwargs["finished"] or not is_tools:
            return delta
        is_complete = bool(delta_token_ids) and self._is_end(delta_token_ids[-1], request)
        text, calls = self._read_body(self._held.text, request, is_complete)
        rest = text[self._held.sent :]
        if rest or calls:
            delta = delta or DeltaMessage()
            delta.content = (delta.content or "") + rest or None
            delta.tool_calls = [begun_call(i, call) for i, call in enumerate(calls)]
        return delta

    def _extract_tool_calls(
        self, content: str | None, request: Any, enable_auto_tools: bool = False
    ) -> Any:
        """Read the text and the calls of an output that is complete."""
        if not enable_auto_tools or not self._reads_calls(request):
            return super()._extract_tool_calls(content, request, enable_auto_tools)
        text, calls = self._read_body(content or "", request, True)
        return calls or None, text or None

    def _reads_calls(self, request: Any) -> bool:
        """Return whether calls are read from the model's own markup, and not from JSON."""
        choice = request.tool_choice
        if not request.tools or choice == "none":
            return False
        return choice in (None, "auto") or not self._tool_parser.supports_required_and_named

    def _is_end(self, token: int, request: Any) -> bool:
        return token in self.ends or token in (getattr(request, "stop_token_ids", None) or ())

    def _read_body(
        self, body: str, request: Any, is_complete: bool
    ) -> tuple[str, list[FunctionCall]]:
        text, begin = self._held.shown(body)
        if begin is None:
            return text, []
        if not is_complete:
            return ("" if text.isspace() else text), self._begun_calls(request)
        calls, rest = self._whole_calls(body, request)
        if not calls:
            return self._held.unframed(body), []
        rest = (rest or "").strip().removeprefix(text.strip())
        return ("" if text.isspace() else text) + rest, calls

    def _whole_calls(self, body: str, request: Any) -> tuple[list[FunctionCall], str | None]:
        reader = type(self.tool_parser)(self.model_tokenizer, self.tool_parser.tools)
        try:
            extracted = reader.extract_tool_calls(body, self._in_chat_form(request))
        except Exception as error:
            _LOG.warning(
                "vLLM's parser %s cannot read a tool call: %s", type(reader).__name__, error
            )
            return [], None
        calls = [call.function for call in extracted.tool_calls]
        for call, tool_call in zip(calls, extracted.tool_calls, strict=True):
            call.id = self._make_tool_call_id(call.name) or tool_call.id or make_tool_call_id()
        return calls, extracted.content

    def _begun_calls(self, request: Any) -> list[FunctionCall]:
        """Return the calls of an output that was cut off, with their arguments up to that point."""
        reader = type(self.tool_parser)(self.model_tokenizer, self.tool_parser.tools)
        request = self._in_chat_form(request)
        calls: dict[int, FunctionCall] = {}
        text, ids = "", list[int]()
        texts = TokenTexts(self.model_tokenizer, None, request, skips_special=self.skips_special)
        pieces = [piece for delta in self._held.pieces for piece in texts.split(*delta)]
        try:
            for piece, tokens in pieces:
                delta = reader.extract_tool_calls_streaming(
                    text, text + piece, piece, ids, ids + tokens, tokens, request
                )
                text, ids = text + piece, ids + tokens
                for call in delta.tool_calls if delta is not None else ():
                    add_call(calls, call)
        except Exception as error:
            _LOG.warning(
                "vLLM's parser %s cannot read a tool call that was cut off: %s",
                type(reader).__name__,
                error,
            )
        return [calls[index] for index in sorted(calls) if calls[index].name]


class _HeldOutput:
    """The part of an output that may have calls.

    ``text`` is the whole part, ``sent`` is the number of its characters that were streamed, and
    ``pieces`` has each piece with its token ids.
    """

    def __init__(self, mark: Any, frame: Any) -> None:
        self._mark = mark
        self._frame = frame
        self._is_marked = False
        # With a new piece, only the text after these positions is read, because the time to read
        # the whole text with each token would grow with the square of the text's length.
        self._unmarked = 0
        """No call begins in ``text`` before this position."""
        self._read = 0
        """The text before this position was returned, or is markup around the answer."""
        self._blanks = ""
        """Blanks at the beginning of the text, which are dropped if a call follows."""
        self.text = ""
        self.sent = 0
        self.pieces: list[tuple[str, list[int]]] = []

    def add(self, text: str, tokens: Sequence[int]) -> str:
        """Take the next piece, and return the text that is certainly not part of a call."""
        self.text += text
        self.pieces.append((text, list(tokens)))
        if self._is_marked:
            return ""
        match = self._mark.search(self.text, pos=self._unmarked, partial=True)
        self._unmarked = len(self.text) if match is None else match.start()
        self._is_marked = match is not None and not match.partial
        certain = self._blanks + self._unframed_until(self._unmarked)
        self._blanks = ""
        if not self.sent and not certain.strip():
            self._blanks = certain
            return ""
        self.sent += len(certain)
        return certain

    def _unframed_until(self, end: int) -> str:
        """Return the unread text before the position ``end``, without the markup around an answer.
        An end that may belong to such markup stays unread.
        """
        unframed = ""
        while self._read < end:
            rest = self.text[self._read : end]
            match = None if self._frame is None else self._frame.search(rest, partial=True)
            if match is None:
                self._read = end
                return unframed + rest
            unframed += rest[: match.start()]
            # Blanks that follow the markup may belong to it.
            if match.partial or match.end() == len(rest):
                self._read += match.start()
                break
            self._read += match.end()
        return unframed

    def shown(self, body: str) -> tuple[str, int | None]:
        """Return the text before the first call, and the position of that call (None: no call)."""
        match = self._mark.search(body)
        if match is None:
            return self.unframed(body), None
        return self.unframed(body[: match.start()]), match.start()

    def unframed(self, text: str) -> str:
        """Return ``text`` without the markup around an answer."""
        return text if self._frame is None else str(self._frame.sub("", text))


class InChatForm:
    """A request of the Responses API whose tools have the form of chat completions.

    vLLM's older tool parsers expect this form.
    """

    def __init__(self, request: Any) -> None:
        self._request = request
        self.tools = chat_tools(request.tools)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


def chat_tools(tools: Iterable[Any] | None) -> list[Any] | None:
    """Convert tools of any API to the form of chat completions, which some parsers expect. Tools
    that are not functions are left out.
    """
    if tools is None:
        return None
    return [
        tool
        if hasattr(tool, "function")
        else ChatCompletionToolsParam(
            function=FunctionDefinition(name=tool.name, parameters=tool.parameters)
        )
        for tool in tools
        if hasattr(tool, "function") or getattr(tool, "type", "") == "function"
    ]


def add_call(calls: dict[int, FunctionCall], delta: DeltaToolCall) -> None:
    """Add ``delta``, a piece of a call, to its call in ``calls``, which maps indexes to calls."""
    call = calls.setdefault(delta.index, FunctionCall(name="", arguments=""))
    call.id = call.id or delta.id or make_tool_call_id()
    if delta.function is not None:
        call.name += delta.function.name or ""
        call.arguments += delta.function.arguments or ""


def begun_call(index: int, call: FunctionCall) -> DeltaToolCall:
    """Return a function call, complete or cut off, as a single delta of a stream."""
    function = DeltaFunctionCall(name=call.name, arguments=call.arguments)
    return DeltaToolCall(index=index, id=call.id, type="function", function=function)


# -- calls that a stream misses ----------------------------------------------------------


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
        """Return deltas for the calls of the ``whole`` output that were not streamed, and for the
        arguments of the last streamed call if these were not streamed.

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
