"""Keeps text and tool calls in order where vLLM's parser engine gets several tokens at once.

vLLM's parser engine turns the events of a piece of a stream into one delta. If a piece has both
text and a call, the engine moves blanks from before the text to after it, and delays text that
follows the call until the next piece, or drops this text. The events of such a piece are read here
in runs of text and runs of calls, as if the runs had arrived one after the other.

Some engines stream arguments only when a piece has a character that may end a value, such as ``>``.
If arguments were cut off, the part that these engines would stream depends on the pieces. Here, the
remaining part is streamed at the end of the output.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
)
from vllm.parser.engine.events import EventType, SemanticEvent

from agentrt.executors.vllm._compat.token_texts import Joined

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
