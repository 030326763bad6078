"""Reads a stream correctly when several tokens arrive at once.

Most of vLLM's parsers are written for one token at a time. When the machine is busy or the client
reads slowly, several tokens arrive at once, and such a parser loses parts of the output. So the
stream's pieces are split into the text of each token, and the deltas that are read from these texts
are joined (`TokenTexts`, `Joined`).

vLLM's parser engine turns the events of a piece of a stream into one delta. If a piece has both
text and a call, the engine moves blanks from before the text to after it, and delays text that
follows the call until the next piece, or drops this text. The events of such a piece are read here
in runs of text and runs of calls, as if the runs had arrived one after the other (`keep_order`).

Some engines stream arguments only when a piece has a character that may end a value, such as ``>``.
If arguments were cut off, the part that these engines would stream depends on the pieces. Here, the
remaining part is streamed at the end of the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
)
from vllm.parser.engine.events import EventType, SemanticEvent
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, IncrementalDetokenizer

_CONTEXT = 32
"""How many of the prompt's last tokens are needed to decode the first tokens of the output."""


class TokenTexts:
    """Splits the text of an output into the texts of its tokens.

    ``skips_special`` says whether special tokens have no text if the ``request`` does not say it.
    ``undecoded`` are tokens that were read without being split; they are decoded when the text of a
    later token is needed.
    """

    def __init__(
        self, tokenizer: Any, prompt: Sequence[int] | None, request: Any, *, skips_special: bool
    ) -> None:
        self._tokenizer, self._skips_special = tokenizer, skips_special
        self._prompt = list(prompt or ())[-_CONTEXT:]
        self._request = request
        self.undecoded: list[int] = []
        self._decoder: Any = None
        self._text = ""
        self._waiting: deque[tuple[int, int]] = deque()

    def split(self, text: str, ids: list[int]) -> list[tuple[str, list[int]]]:
        """Split ``text`` into the texts of the tokens ``ids``, each with its token.

        The last token gets all remaining text.
        """
        pieces, at = [], 0
        for token in ids[:-1]:
            end = at + self._length(token)
            pieces.append((text[at:end], [token]))
            at = end
        self.undecoded += ids[-1:]
        return [*pieces, (text[at:], ids[-1:])]

    def in_time(self, text: str, ids: list[int], *, finished: bool) -> list[tuple[str, list[int]]]:
        """Add new text and tokens, and return each token whose text has arrived, with its text.

        With stop strings, an engine holds the last characters back, so tokens arrive before their
        text. If the output is ``finished``, all remaining tokens and text are returned.
        """
        self._text += text
        self._waiting += [(token, self._length(token)) for token in ids]
        pieces: list[tuple[str, list[int]]] = []
        while self._waiting and (finished or self._waiting[0][1] <= len(self._text)):
            token, length = self._waiting.popleft()
            pieces.append((self._text[:length], [token]))
            self._text = self._text[length:]
        if finished and (self._text or not pieces):
            pieces.append((self._text, []))
        return pieces

    def _length(self, token: int) -> int:
        """Return how many characters ``token`` adds to the text of the tokens before it."""
        if self._decoder is None:
            self._decoder = self._new_decoder()
        for earlier in self.undecoded:
            self._decode(earlier)
        self.undecoded.clear()
        return self._decode(token)

    def _new_decoder(self) -> Any:
        request = self._request
        skips_special = getattr(request, "skip_special_tokens", None)  # 0.33: None by default
        params = SamplingParams(
            skip_special_tokens=self._skips_special if skips_special is None else skips_special,
            spaces_between_special_tokens=getattr(request, "spaces_between_special_tokens", True),
        )
        new: Any = SimpleNamespace(
            request_id="", prompt_token_ids=self._prompt, sampling_params=params
        )
        return IncrementalDetokenizer.from_new_request(self._tokenizer, new)

    def _decode(self, token: int) -> int:
        decoder = self._decoder
        if not isinstance(decoder, BaseIncrementalDetokenizer):
            return 0
        decoder.token_ids.append(token)
        return len(decoder.decode_next(token))


class Joined:
    """The deltas that a parser returns for several tokens, joined into one ``delta``."""

    def __init__(self) -> None:
        self.delta: Any = None

    def add(self, delta: Any) -> None:
        """Add the parser's delta for the next token, or None."""
        if delta is None:
            return
        if self.delta is None:
            self.delta = delta
            return
        joined = self.delta
        if delta.reasoning:
            joined.reasoning = (joined.reasoning or "") + delta.reasoning
        if delta.content:
            joined.content = (joined.content or "") + delta.content
        if delta.tool_calls:
            joined.tool_calls = together([*joined.tool_calls, *delta.tool_calls])


def together(calls: Sequence[DeltaToolCall]) -> list[DeltaToolCall]:
    """Join successive pieces that belong to the same call, and return the resulting pieces."""
    joined: list[DeltaToolCall] = []
    for call in calls:
        last = joined[-1] if joined else None
        if last is None or last.index != call.index or not last.function or not call.function:
            joined.append(call)
            continue
        if call.id is not None:  # vLLM sends each field that was set, even if to None
            last.id, last.type = call.id, call.type
        if call.function.name:
            last.function.name = (last.function.name or "") + call.function.name
        if call.function.arguments is not None:
            last.function.arguments = (last.function.arguments or "") + call.function.arguments
    return joined


# -- the order of text and calls ---------------------------------------------------------


_CALL_EVENTS = frozenset(
    (
        EventType.TOOL_CALL_START,
        EventType.TOOL_NAME,
        EventType.ARG_VALUE_CHUNK,
        EventType.TOOL_CALL_END,
    )
)


def keep_order(parser: Any) -> None:
    """Make vLLM's parser engine keep text and calls in order, if ``parser`` is or wraps one."""
    engine = getattr(parser, "_parser_engine", parser)
    if not hasattr(engine, "_events_to_delta"):
        return
    read = partial(_read_in_runs, engine, engine._events_to_delta)
    if engine._arg_structural_chars is not None:
        read = partial(_read_to_end, engine, read)
        engine.finish_streaming = partial(_finish, engine)
    engine._events_to_delta = read


def _finish(engine: Any) -> Any:
    """Read the end of a stream. vLLM's own method does nothing if no event and no text are left."""
    return engine._events_to_delta(engine._engine.finish(), finished=True)


def _read_to_end(
    engine: Any, read: Any, events: list[SemanticEvent], finished: bool = False
) -> Any:
    """Return the delta that ``read`` returns for ``events``. At the end of a stream, also add the
    remaining part of arguments that were cut off.
    """
    delta = read(events, finished=finished)
    slot = engine._tool_slots[-1] if engine._tool_slots else None
    if not finished or slot is None or not slot.name_sent or engine._suppress_tool_calls:
        return delta
    index, structural, raw = len(engine._tool_slots) - 1, engine._arg_structural_chars, slot.args
    # The end of the raw text may be the beginning of a mark, which is no part of a value.
    slot._args_joined = _without_mark(raw, engine.parser_engine_config)
    engine._arg_structural_chars = None
    try:
        rest = engine._compute_arg_delta(index, "")
    finally:
        engine._arg_structural_chars, slot._args_joined = structural, raw
    if not rest:
        return delta
    joined = Joined()
    joined.add(delta)
    call = DeltaToolCall(index=index, function=DeltaFunctionCall(arguments=rest))
    joined.add(DeltaMessage(tool_calls=[call]))
    return joined.delta


def _without_mark(text: str, config: Any) -> str:
    """Return ``text`` without the characters at its end that are the beginning of one of the
    parser's marks.
    """
    marks = [
        mark
        for value in config.terminals.values()
        for mark in ([value] if isinstance(value, str) else value)
    ]
    longest = max(map(len, marks), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        end = text[start:]
        if any(mark != end and mark.startswith(end) for mark in marks):
            return text[:start]
    return text


def _read_in_runs(
    engine: Any, read: Any, events: list[SemanticEvent], finished: bool = False
) -> Any:
    if engine._suppress_tool_calls:
        return read(events, finished=finished)
    if not any(event.type in _CALL_EVENTS for event in events):
        return _read_text(engine, read, events, finished)
    joined = Joined()
    runs = [(key, list(run)) for key, run in groupby(events, _is_of_call)]
    for number, (is_of_call, run) in enumerate(runs, 1):
        is_last = finished and number == len(runs)
        if not is_of_call:
            joined.add(_read_text(engine, read, run, is_last))
            continue
        if engine._drop_ws_only_content_before_tools:
            engine._deferred_content = ""  # at the beginning of a run, it has only blanks
        joined.add(read(run, finished=is_last))
    return joined.delta


def _read_text(engine: Any, read: Any, events: list[SemanticEvent], finished: bool) -> Any:
    """Read events without calls. If the engine drops blanks before calls, blanks between calls and
    the first text are dropped, too.
    """
    is_after_calls = bool(engine._tool_slots) and not engine._content_has_nonws
    delta = read(events, finished=finished)
    if delta is None or not (is_after_calls and delta.content):
        return delta
    if engine._drop_ws_only_content_before_tools:
        delta.content = delta.content.lstrip() or None
    return delta if delta.content or delta.reasoning or delta.tool_calls else None


def _is_of_call(event: SemanticEvent) -> bool:
    return event.type in _CALL_EVENTS
