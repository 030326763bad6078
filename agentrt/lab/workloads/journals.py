"""A reader that turns journals of `agentrt run` and `agentrt serve` into programs that can be run
again.

The nodes of a program are read as its execution DAG (`agentrt.lab.workloads.dagfile`). The DAG has
the dependencies of calls, the times of tools, humans and the program's own code between calls, and
the work of each call. A journal with texts also shows which prompts have a common beginning
(`agentrt.lab.workloads.texts`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
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
from agentrt.lab.workloads.fields import LocatedFields, Notes
from agentrt.lab.workloads.replay import UNSCALED, Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.lab.workloads.texts import Texts, message_text, prompt_text
from agentrt.request import CallReport, Usage

_ALL = 10**9
_KINDS = {"call": "call", "tool": "tool", "human": "human", "event": "event", "sleep": "event"}
"""The kinds of nodes that take time, with their kinds in a DAG."""
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens")
_SECONDS = ("service_s", "waiting_s")
_REPORTED = (*_COUNTS, "spans", *_SECONDS, "preemptions")
_USAGE = tuple(each.name for each in fields(Usage))

NO_TEXT = "programs without texts, whose prompts share prefixes only within the program"
OPEN = "programs that had not ended, replayed as far as they were recorded"
PAUSED = "programs that were stopped or parked and resumed, with the pause as a gap"


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A recorded call that has ended. ``node`` is the name of the node function that made the call;
    "" if none did. ``account`` is the call's report. ``request`` and ``reply`` are empty if they
    were not recorded.
    """

    program: str
    node: str
    started: float
    ended: float
    account: Mapping[str, Any]
    request: Mapping[str, Any]
    reply: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """The programs of a journal, and the outcomes of the programs that have ended, in the order in
    which they ended.

    ``engines`` are descriptions of the recorded engines, the last engine first; empty if no engine
    was recorded.
    """

    programs: tuple[ProgramShape, ...]
    outcomes: tuple[Outcome, ...]
    calls: tuple[RecordedCall, ...]
    engines: tuple[Mapping[str, Any], ...]

    @property
    def engine(self) -> Mapping[str, Any]:
        """The settings that are the same for all engines."""
        first, *others = self.engines or ({},)
        return {
            name: value
            for name, value in first.items()
            if all(engine.get(name) == value for engine in others)
        }


def read(path: Path, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """Return the programs of a journal that have a call with a result, in the order in which they
    started. Raises `JournalError` if the journal cannot be read.
    """
    recording, noted = _recorded(path, scales)
    notes.update(noted.explained())
    return list(recording.programs)


def read_recording(path: Path) -> Recording:
    """Read everything that a replay needs from a journal.

    Raises `JournalError` if the journal cannot be read, and `ConfigError` if no program made a call
    and ended.
    """
    recording, notes = _recorded(path, UNSCALED)
    if not recording.outcomes:
        why = "; ".join(f"{label}: {count}" for label, count in notes.explained().items())
        raise ConfigError(
            f"journal {path} has nothing to replay, because no program in it made a call and "
            f"ended ({why or 'it has no programs'})"
        )
    return recording


@lru_cache(maxsize=4)
def _recorded(path: Path, scales: Scales) -> tuple[Recording, Notes]:
    notes = Notes()
    with closing(ReadingStore(path)) as store:
        engines = _engines(store)
        read = [_RecordedDag(program, notes) for program in [*histories(store, limit=_ALL)][::-1]]
    entries = [
        LocatedFields(f"journal {path}, {program.row.id}", program.dag()) for program in read
    ]
    shapes = {shape.program_id: shape for shape in dagfile.read(entries, "program", scales, notes)}
    kept = [shape for shape in read if shape.row.id in shapes]
    for program in kept:
        shapes[program.row.id] = program.completed(shapes[program.row.id], scales.gap)
    if scales == UNSCALED:
        _add_ids(shapes, [call for program in kept for call in program.calls])
    ended = [program for program in kept if program.ended is not None]
    outcomes = [program.outcome(shapes[program.row.id]) for program in ended]
    recording = Recording(
        tuple(shapes[program.row.id] for program in kept),
        tuple(sorted(outcomes, key=lambda outcome: outcome.ended_s)),
        tuple(call for outcome in kept for call in outcome.calls),
        engines,
    )
    return recording, notes


def _engines(store: ReadingStore) -> tuple[Mapping[str, Any], ...]:
    """Return the descriptions of the recorded engines, the last engine first. Older journals have
    only the last engine.
    """
    rows = store.query("SELECT value FROM agentrt_journal WHERE key LIKE 'engine%' ORDER BY key")
    return tuple(map(json.loads, dict.fromkeys(text for (text,) in rows)))


class _RecordedDag:
    """A recorded program, read as a DAG with its nodes in the order in which they began."""

    def __init__(self, history: History, notes: Notes) -> None:
        self.row, root = history.program, history.root
        self.calls: list[RecordedCall] = []
        self.nodes: list[dict[str, Any]] = []
        self._ids: dict[str, list[int]] = {}
        self.began = self.row.started if root is None else root.first
        self.ended = history.ended
        for label, applies in (
            (OPEN, self.ended is None),
            (PAUSED, root is not None and root.start.attempt > 1),
            (NO_TEXT, self.row.content != "full"),
        ):
            notes.update([label] * applies)
        for place, node in history.nodes.items():
            # Nodes that started earlier belong to the program from which this program was forked.
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
        self.calls += calls
        reports = [{name: call.account.get(name, 0) for name in _COUNTS} for call in calls]
        ids = self._ids[place] = []
        for report in reports or [{}]:  # an empty report counts as none
            ids.append(len(self.nodes))
            self.nodes.append({"id": ids[-1], **value, "report": report})

    def _parents(self, node: PastNode) -> list[int]:
        """Return the parents of a node. If the node is not done, or if not all its parents are
        known, the node that ended last before this node started counts as a parent, too.
        """
        named = node.end.parents.split() if node.end is not None else []
        parents = {parent for name in named for parent in self._ids.get(name, ())}
        if node.state != DONE or not self._ids.keys() >= set(named):
            ends = [(node["ended_at"] or math.inf, node["id"]) for node in self.nodes]
            before = [end for end in ends if end[0] <= node.start.started]
            parents |= {max(before)[1]} if before else set()
        return sorted(parents)

    def _calls(self, node: PastNode) -> Iterator[RecordedCall]:
        """Yield the call of a node, if the node is a call with a result. For a request of several
        answers (``n``), yield a call for each answer.
        """
        start, end = node.start, node.end
        account = json.loads(end.account) if end is not None and end.account else {}
        if end is None or start.kind != "call" or not account.get("output_tokens"):
            return
        where = start.scope.rpartition("/")[2] if "/" in start.scope else ""
        request = node.requests.whole(start, tuple) or {}
        reply = json.loads(end.outcome) if end.outcome and end.state == DONE else {}
        choices = listed(reply, "choices")
        if not choices:
            choices = [reply] if reply else [{}] * (request.get("n") or 1)
        for index, choice in enumerate(choices):
            share = _share(account, index, len(choices))
            if share["output_tokens"]:
                yield RecordedCall(
                    self.row.id, where, start.started, end.ended, share, request, choice
                )

    def completed(self, shape: ProgramShape, scale: float) -> ProgramShape:
        """Return the shape with the time after the last call, and with the names of node functions
        that the scheduler gets.
        """
        pairs = zip(shape.calls, self.calls, strict=True)
        shape = replace(
            shape,
            calls=tuple(replace(shape_of_call, node=call.node) for shape_of_call, call in pairs),
        )
        if self.ended is None:
            return shape
        last = max(call.ended for call in self.calls)
        tools = [node for node in self.nodes if node["kind"] == "tool"]
        name = next((node["name"] for node in tools if node["created_at"] >= last), "")
        return replace(shape, tail_s=scale * max(0.0, self.ended - last), tail_tool=name)

    def outcome(self, shape: ProgramShape) -> Outcome:
        """Return the recorded outcome of the program, with times on the clock of ``shape``."""
        assert self.ended is not None
        reports = {at: _report(call) for at, call in enumerate(self.calls)}
        ended_s = shape.arrives_s + self.ended - self.began
        return Outcome.of(shape, shape.arrives_s, ended_s, reports)


def _share(account: Mapping[str, Any], index: int, count: int) -> Mapping[str, Any]:
    """Return the report of one of the ``count`` calls of a request.

    ``account`` is the report of the request. An engine makes a call for each answer, and the
    request has the sums of their reports (`CallReport.of_all`); an endpoint, which reports no
    steps, has only the sum of their outputs. It is not known which call got how much, so the sums
    are divided evenly.
    """
    if count == 1:
        return account
    summed = (*_USAGE, *_SECONDS) if account.get("steps") else ("output_tokens",)
    shares = dict(account)
    for name in account.keys() & {*summed}:
        value = account[name]
        shares[name] = value / count if name in _SECONDS else (value + count - 1 - index) // count
    return shares


def _report(call: RecordedCall) -> CallReport:
    """Return the parts of a call's report that an outcome needs. Raises `JournalError` if they
    cannot be read.
    """
    report = CallReport(**{name: call.account[name] for name in _REPORTED if name in call.account})
    engine_spans(report, f"a call of program {call.program}")
    return report


def _add_ids(shapes: dict[str, ProgramShape], recorded: Sequence[RecordedCall]) -> None:
    """Add token ids to the calls whose prompts and outputs are recorded."""
    texts, calls = Texts(), {name: list(call.calls) for name, call in shapes.items()}
    places = defaultdict[str, int](int)
    for call in sorted(recorded, key=lambda call: call.started):
        place, places[call.program] = places[call.program], places[call.program] + 1
        calls[call.program][place] = _with_ids(calls[call.program][place], call, texts)
    for name, new_calls in calls.items():
        shapes[name] = replace(shapes[name], calls=tuple(new_calls))


def _with_ids(shape: CallShape, call: RecordedCall, texts: Texts) -> CallShape:
    prompt, output, request = shape.prompt_tokens, shape.output_tokens, call.request
    if prompt and request.get("messages"):
        root, text = f"{request.get('model')} {request.get('cache_salt')}", prompt_text(request)
        shape = replace(shape, prompt_ids=texts.ids(root, text, prompt))
        if "text" not in call.reply:
            return shape
        answer = message_text({"content": call.reply["text"]}, listed(call.reply, "tool_calls"))
        whole = texts.ids(root, text + answer, prompt + output)
        return replace(shape, output_ids=tuple(chain.from_iterable(_after(whole, prompt))))
    ids = tuple(listed(request, "prompt_token_ids"))
    output_ids = tuple(listed(call.reply, "token_ids"))
    if not ids or len(ids) != prompt:
        return shape
    return replace(
        shape, prompt_ids=(ids,), output_ids=output_ids if len(output_ids) == output else ()
    )


def _after(parts: Sequence[range], count: int) -> Iterator[range]:
    """Yield the ids after the first ``count``."""
    for part in parts:
        yield part[count:]
        count = max(0, count - len(part))


def listed(values: Any, name: str) -> Sequence[Any]:
    """Return the sequence ``name`` of a recorded request or reply; empty if it is missing."""
    value = values.get(name) or () if isinstance(values, Mapping) else ()
    if not isinstance(value, Mapping):
        return value
    return unpacked(value["value"]) if value["$"] == "ids" else value["value"]
