"""Logs of an OpenAI-style API: one request with its response a line, grouped into chains.

Read, by the first of these names that is there (``a.b`` is field b of object a; what lies under
``request`` or ``response`` may also lie at the top, or in a ``body`` there):

* session: ``session_id``, ``conversation_id``, ``thread_id`` or ``trace_id``, at the top, in
  ``metadata`` or in ``request.metadata``; else ``user`` (``request.user``);
* tokens: ``response.usage`` with ``prompt_tokens`` and ``completion_tokens``, or with
  ``input_tokens`` and ``output_tokens``;
* start: ``timestamp``, ``start_time``, ``created_at``, ``request.timestamp``,
  ``response.created_at`` or ``response.created``: seconds or milliseconds since 1970, or ISO 8601
  (UTC where it names no zone);
* duration: ``latency_ms`` or ``duration_ms``, ``latency_s``, ``duration_s``, ``latency`` or
  ``duration`` (seconds), or a time ``end_time``;
* ``request.messages``: whether a prompt extends the one before, and whether a human spoke last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from agentrt.lab.workloads.fields import Fields, Notes
from agentrt.lab.workloads.replay import Replay, Scales
from agentrt.lab.workloads.shape import ProgramShape

_SESSION = ("session_id", "conversation_id", "thread_id", "trace_id")
_START = ("timestamp", "start_time", "created_at", "created")
_DURATION = (
    ("latency_ms", 1e-3),
    ("duration_ms", 1e-3),
    ("latency_s", 1.0),
    ("duration_s", 1.0),
    ("latency", 1.0),
    ("duration", 1.0),
)
_MILLISECONDS = 1e11
"""A time since 1970 above this is in milliseconds: as seconds it would be the year 5138."""

UNREADABLE = "requests that cannot be read, left out"
NO_USAGE = "requests without token counts (failed, or not logged), left out"
NO_SESSION = "requests without a session or user, each a program of its own"
NO_TIME = "requests in sessions without times, in the order of the file and without gaps"
NO_DURATION = "requests without a duration, which the gap after them includes"
OVERLAP = "requests that began before the one before them had ended, chained without a gap"
GUESSED = "requests without messages, taken to extend the one before where long enough"


@dataclass(frozen=True, slots=True)
class _Request:
    """One line: tokens, times in seconds since 1970, and the messages if they were logged."""

    prompt_tokens: int
    output_tokens: int
    start_s: float | None
    took_s: float | None
    messages: list[Any] | None


def looks_like(entry: Fields) -> bool:
    """True for an object that can be a line of such a log."""
    return not entry.values.keys().isdisjoint(("usage", "request", "response", "body"))


def read(entries: Sequence[Fields], type: str, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """One program of this type per session, in the order of their first lines."""
    # By name and whether the log gives it: a session may be called "request 3" too.
    sessions: dict[tuple[str, bool], list[_Request]] = defaultdict(list)
    for index, entry in enumerate(entries):
        with notes.leaving_out(UNREADABLE):
            request = _request(entry)
            if request is None:
                notes[NO_USAGE] += 1
                continue
            session = _session(entry)
            if session is None:
                notes[NO_SESSION] += 1
            own = f"request {index}"
            sessions[(own, False) if session is None else (session, True)].append(request)
    starts = [r.start_s for some in sessions.values() for r in some if r.start_s is not None]
    first = min(starts, default=0.0)
    return [
        _program(session, requests, type, first, scales, notes)
        for (session, _), requests in sessions.items()
    ]


def _program(
    session: str,
    requests: list[_Request],
    type: str,
    first_s: float,
    scales: Scales,
    notes: Notes,
) -> ProgramShape:
    requests = _in_order(requests, notes)
    replay = Replay(scales, notes)
    before: _Request | None = None
    for index, request in enumerate(requests):
        last = index - 1 if before is not None else None
        replay.call(
            "turn" if _human(request) else "step",
            request.prompt_tokens,
            request.output_tokens,
            after=() if last is None else (last,),
            extends=last if before is not None and _extends(request, before, notes) else None,
            gap_s=0.0 if before is None else _gap(request, before, notes),
            human=_human(request),
        )
        before = request
    at_s = requests[0].start_s
    arrives_s = 0.0 if at_s is None else at_s - first_s
    return ProgramShape(session, type, tuple(replay.calls), arrives_s, session=session)


def _in_order(requests: list[_Request], notes: Notes) -> list[_Request]:
    """By their start; as in the file, and all without times, if any has none."""
    if all(request.start_s is not None for request in requests):
        return sorted(requests, key=lambda request: request.start_s or 0.0)
    notes[NO_TIME] += len(requests)
    return [replace(request, start_s=None, took_s=None) for request in requests]


def _gap(request: _Request, before: _Request, notes: Notes) -> float:
    if request.start_s is None or before.start_s is None:
        return 0.0
    if before.took_s is None:
        notes[NO_DURATION] += 1
    gap_s = request.start_s - before.start_s - (before.took_s or 0.0)
    if gap_s < 0:
        notes[OVERLAP] += 1
    return max(0.0, gap_s)


def _extends(request: _Request, before: _Request, notes: Notes) -> bool:
    if request.messages is None or before.messages is None:
        notes[GUESSED] += 1
        return request.prompt_tokens >= before.prompt_tokens + before.output_tokens
    known = len(before.messages)
    return known < len(request.messages) and request.messages[:known] == before.messages


def _human(request: _Request) -> bool:
    """True if a human spoke last, as far as the log says."""
    last = request.messages[-1] if request.messages else None
    return isinstance(last, dict) and last.get("role") == "user"


def _request(entry: Fields) -> _Request | None:
    """The line's request; None if it has no token counts."""
    usage = next((f for part in _parts(entry, "response") if (f := part.object("usage"))), None)
    if usage is None:
        return None
    # The older API says prompt and completion, the newer input and output.
    names = ("prompt_tokens", "completion_tokens")
    if usage.values.get(names[0]) is None:
        names = ("input_tokens", "output_tokens")
    messages = [part.values.get("messages") for part in _parts(entry, "request")]
    start_s = _start(entry)
    return _Request(
        usage.tokens(names[0]),
        # A request to embed or moderate has no output, and says so by leaving this out.
        usage.tokens(names[1]) if usage.values.get(names[1]) is not None else 0,
        start_s,
        _duration(entry, start_s),
        next((one for one in messages if isinstance(one, list)), None),
    )


def _parts(entry: Fields, name: str) -> Iterator[Fields]:
    """The objects in which fields of a request or response may lie."""
    part = entry.object(name)
    for one in (part, entry):
        if one is not None:
            yield one
            body = one.object("body")
            if body is not None:
                yield body


def _session(entry: Fields) -> str | None:
    parts = [entry, *_parts(entry, "request")]
    metadata = [one for part in parts if (one := part.object("metadata")) is not None]
    for names, places in ((_SESSION, (*metadata, *parts)), (("user",), (*metadata, *parts))):
        for place in places:
            for name in names:
                value = place.values.get(name)
                if isinstance(value, str | int) and value != "":
                    return str(value)
    return None


def _start(entry: Fields) -> float | None:
    for part in (entry, *_parts(entry, "request"), *_parts(entry, "response")):
        for name in _START:
            if part.values.get(name) is not None:
                return _time(part, name)
    return None


def _duration(entry: Fields, start_s: float | None) -> float | None:
    for name, unit in _DURATION:
        value = entry.number(name)
        if value is not None:
            return value * unit
    if start_s is None or entry.values.get("end_time") is None:
        return None
    end_s = _time(entry, "end_time")
    if end_s < start_s:
        raise entry.complain("'end_time' is before the start")
    return end_s - start_s


def _time(entry: Fields, name: str) -> float:
    """A time in seconds since 1970."""
    value = entry.values[name]
    if not isinstance(value, str):
        seconds = entry.number(name) or 0.0
        return seconds / 1000 if seconds > _MILLISECONDS else seconds
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise entry.complain(f"{name!r} is {value!r}, which is no ISO 8601 time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
