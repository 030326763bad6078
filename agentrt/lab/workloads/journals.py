"""Journals of `agentrt run` and `serve`, as programs to run again.

A program's nodes are read as its execution DAG (`agentrt.lab.workloads.dagfile`): who had to end
before whom, how long tools, humans and its own code took in between, what each call computed. With
contents a journal also tells whose prompts begin alike (`agentrt.lab.workloads.texts`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from agentrt.errors import ConfigError
from agentrt.journal.analysis.reading import History, ReadingStore, histories
from agentrt.journal.analysis.wall import engine_spans
from agentrt.journal.kinds import unpacked
from agentrt.journal.past import PastNode
from agentrt.journal.schema import DONE
from agentrt.lab.outcome import Outcome
from agentrt.lab.workloads import dagfile
from agentrt.lab.workloads.fields import Fields, Notes
from agentrt.lab.workloads.replay import UNSCALED, Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.lab.workloads.texts import Texts, prompt_text, said
from agentrt.request import CallReport

_ALL = 10**9
_KINDS = {"call": "call", "tool": "tool", "human": "human", "event": "event", "sleep": "event"}
"""Nodes that take time, and their kind in a DAG."""
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens")
_TOLD = (*_COUNTS, "spans", "service_s", "waiting_s", "preemptions")

NO_TEXT = "programs without texts, whose prompts are alike along their own calls alone"
OPEN = "programs that had not ended, replayed as far as they had come"
PAUSED = "programs that were stopped or parked and went on, with the pause as a gap"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call that ended: in which node function, what it cost, and what was asked and answered, if
    that is kept.
    """

    program: str
    node: str
    started: float
    ended: float
    account: Mapping[str, Any]
    asked: Mapping[str, Any]
    reply: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """A journal: its programs, and what came of those that ended, in the order of their ends.

    ``engines`` are all that the journal was written on, the last one first; there may be none.
    """

    programs: tuple[ProgramShape, ...]
    outcomes: tuple[Outcome, ...]
    calls: tuple[RecordedCall, ...]
    engines: tuple[Mapping[str, Any], ...]

    @property
    def engine(self) -> Mapping[str, Any]:
        """What is true of all engines."""
        first, *others = self.engines or ({},)
        return {
            name: value
            for name, value in first.items()
            if all(one.get(name) == value for one in others)
        }


def read(path: Path, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """The programs of a journal. Raises `JournalError`."""
    recording, noted = _recorded(path, scales)
    notes.update(noted.explained())
    return list(recording.programs)


def read_recording(path: Path) -> Recording:
    """All that a replay needs of a journal. Raises `JournalError`, and `ConfigError` for one
    without a program that made a call and ended.
    """
    recording, notes = _recorded(path, UNSCALED)
    if not recording.outcomes:
        why = "; ".join(f"{what}: {count}" for what, count in notes.explained().items())
        raise ConfigError(
            f"journal {path}: there is nothing to replay, since no program in it made a call and "
            f"ended ({why or 'it has no programs'})"
        )
    return recording


@lru_cache(maxsize=4)
def _recorded(path: Path, scales: Scales) -> tuple[Recording, Notes]:
    notes = Notes()
    with closing(ReadingStore(path)) as store:
        engines = _engines(store)
        read = [_Program(one, notes) for one in [*histories(store, limit=_ALL)][::-1]]
    entries = [Fields(f"journal {path}, {one.row.id}", one.dag()) for one in read]
    shapes = {one.program_id: one for one in dagfile.read(entries, "program", scales, notes)}
    kept = [one for one in read if one.row.id in shapes]
    for one in kept:
        shapes[one.row.id] = one.completed(shapes[one.row.id], scales.gap)
    if scales == UNSCALED:
        _add_ids(shapes, [call for one in kept for call in one.calls])
    ended = [one for one in kept if one.ended is not None]
    outcomes = [one.outcome(shapes[one.row.id]) for one in ended]
    recording = Recording(
        tuple(shapes[one.row.id] for one in kept),
        tuple(sorted(outcomes, key=lambda one: one.ended_s)),
        tuple(call for one in kept for call in one.calls),
        engines,
    )
    return recording, notes


def _engines(store: ReadingStore) -> tuple[Mapping[str, Any], ...]:
    """The last one comes first; older journals have no other."""
    rows = store.query("SELECT value FROM agentrt_journal WHERE key LIKE 'engine%' ORDER BY key")
    return tuple(map(json.loads, dict.fromkeys(text for (text,) in rows)))


class _Program:
    """One recorded program, read as a DAG: its nodes in the order in which they began."""

    def __init__(self, history: History, notes: Notes) -> None:
        self.row, root = history.program, history.root
        self.calls: list[RecordedCall] = []
        self.nodes: list[dict[str, Any]] = []
        self._ids: dict[str, list[int]] = {}
        self.began = self.row.started if root is None else root.first
        self.ended = history.ended
        for what, applies in (
            (OPEN, self.ended is None),
            (PAUSED, root is not None and root.start.attempt > 1),
            (NO_TEXT, self.row.content != "full"),
        ):
            notes.update([what] * applies)
        for place, node in history.nodes.items():
            # What was before is that of another, which this one was forked from.
            if node.start.kind in _KINDS and node.start.started >= self.began:
                self._add(place, node)

    def dag(self) -> dict[str, Any]:
        row = self.row
        program = {"id": row.id, "type": row.type, "tenant": row.tenant, "started_at": self.began}
        return {"version": 1, "program": program, "nodes": self.nodes}

    def _add(self, place: str, node: PastNode) -> None:
        start, end = node.start, node.end
        value: dict[str, Any] = {
            "kind": _KINDS[start.kind],
            "name": start.name,
            "scope": start.scope,
            "parents": self._parents(node),
            "created_at": start.started,
            "ended_at": None if end is None else end.ended,
        }
        calls = list(self._calls(node))
        first, self.calls = len(self.nodes), self.calls + calls
        if calls:
            value["report"] = {name: calls[0].account.get(name, 0) for name in _COUNTS}
        self._ids[place] = list(range(first, first + max(1, len(calls))))
        self.nodes += [{"id": one, **value} for one in self._ids[place]]

    def _parents(self, node: PastNode) -> list[int]:
        """A node that failed does not name them, nor is it named: what ended last stands there."""
        named = node.end.parents.split() if node.end is not None else []
        found = {one for name in named for one in self._ids.get(name, ())}
        if node.state != DONE or not self._ids.keys() >= set(named):
            ends = [(one["ended_at"] or math.inf, one["id"]) for one in self.nodes]
            before = [end for end in ends if end[0] <= node.start.started]
            found |= {max(before)[1]} if before else set()
        return sorted(found)

    def _calls(self, node: PastNode) -> Iterator[RecordedCall]:
        """The call that a node was: with ``n``, so many."""
        start, end = node.start, node.end
        account = json.loads(end.account) if end is not None and end.account else {}
        if end is None or start.kind != "call" or not account.get("output_tokens"):
            return
        where = start.scope.rpartition("/")[2] if "/" in start.scope else ""
        asked = node.requests.whole(start, tuple) or {}
        reply = json.loads(end.outcome) if end.outcome and end.state == DONE else {}
        for one in listed(reply, "choices") or [reply] * (asked.get("n") or 1):
            yield RecordedCall(self.row.id, where, start.started, end.ended, account, asked, one)

    def completed(self, shape: ProgramShape, scale: float) -> ProgramShape:
        """With what came after its last call, and where its calls were, as the scheduler had it."""
        pairs = zip(shape.calls, self.calls, strict=True)
        shape = replace(shape, calls=tuple(replace(one, node=call.node) for one, call in pairs))
        if self.ended is None:
            return shape
        last = max(call.ended for call in self.calls)
        tools = [node for node in self.nodes if node["kind"] == "tool"]
        name = next((node["name"] for node in tools if node["created_at"] >= last), "")
        return replace(shape, tail_s=scale * max(0.0, self.ended - last), tail_tool=name)

    def outcome(self, shape: ProgramShape) -> Outcome:
        """What came of it, and when: as its shape, in seconds after the first one."""
        assert self.ended is not None
        reports = {at: _report(call) for at, call in enumerate(self.calls)}
        ended_s = shape.arrives_s + self.ended - self.began
        return Outcome.of(shape, shape.arrives_s, ended_s, reports)


def _report(call: RecordedCall) -> CallReport:
    """What an outcome takes of its account. Raises `JournalError` for what cannot be read."""
    report = CallReport(**{name: call.account[name] for name in _TOLD if name in call.account})
    engine_spans(report, f"a call of program {call.program}")
    return report


def _add_ids(shapes: dict[str, ProgramShape], recorded: Sequence[RecordedCall]) -> None:
    """Give calls the ids of their prompts and outputs, where those are recorded."""
    texts, calls = Texts(), {name: list(one.calls) for name, one in shapes.items()}
    places = defaultdict[str, int](int)
    for one in sorted(recorded, key=lambda call: call.started):
        place, places[one.program] = places[one.program], places[one.program] + 1
        calls[one.program][place] = _with_ids(calls[one.program][place], one, texts)
    for name, found in calls.items():
        shapes[name] = replace(shapes[name], calls=tuple(found))


def _with_ids(shape: CallShape, call: RecordedCall, texts: Texts) -> CallShape:
    prompt, output, asked = shape.prompt_tokens, shape.output_tokens, call.asked
    if prompt and asked.get("messages"):
        root, text = f"{asked.get('model')} {asked.get('cache_salt')}", prompt_text(asked)
        shape = replace(shape, prompt_ids=texts.ids(root, text, prompt))
        if "text" not in call.reply:
            return shape
        answer = said({"content": call.reply["text"]}, listed(call.reply, "tool_calls"))
        whole = texts.ids(root, text + answer, prompt + output)
        return replace(shape, output_ids=tuple(chain.from_iterable(_after(whole, prompt))))
    ids, told = (
        tuple(listed(*one)) for one in ((asked, "prompt_token_ids"), (call.reply, "token_ids"))
    )
    if not ids or len(ids) != prompt:
        return shape
    return replace(shape, prompt_ids=(ids,), output_ids=told if len(told) == output else ())


def _after(parts: Sequence[range], count: int) -> Iterator[range]:
    """The ids after so many."""
    for part in parts:
        yield part[count:]
        count = max(0, count - len(part))


def listed(values: Any, name: str) -> Sequence[Any]:
    """A tuple as the journal has it: of a value, or of what was only written down."""
    found = values.get(name) or () if isinstance(values, Mapping) else ()
    if not isinstance(found, Mapping):
        return found
    return unpacked(found["value"]) if found["$"] == "ids" else found["value"]
