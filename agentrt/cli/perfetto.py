"""Writing timelines in Chrome's trace format, which Perfetto opens (ui.perfetto.dev).

Each program is shown as a process. Its first track shows when the program was live. Each further
track belongs to a branch of the program: its nodes are slices, and the phases of a call are slices
within the call. Arrows lead from a node to the nodes on other tracks that had to wait for it. Each
engine is a process with counters: running and waiting calls by level, and steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from agentrt.batch.plain import as_json
from agentrt.cli.timeline import CALL, Slice, Timeline
from agentrt.cli.values import check_output
from agentrt.errors import ConfigError
from agentrt.journal.analysis.wall import ENGINE
from agentrt.journal.analysis.why import level_name
from agentrt.request.spans import DECODE, PREFILL, RECOMPUTE

Event = dict[str, Any]
_RUNS = (RECOMPUTE, PREFILL, DECODE, ENGINE)
_NS = 1e9


def write(timelines: Sequence[Timeline], path: Path) -> None:
    """Write the timelines to a file. Time zero is the start of the first program.

    Raises `ConfigError` if the file cannot be written.
    """
    check_output("trace", path)  # again: a journal may have been created at this path meanwhile
    first = min((life.since for line in timelines for life in line.lives), default=0.0)
    events = _Events(first)
    for timeline in timelines:
        events.add_program(timeline)
    events.add_engines([node for line in timelines for node in line.nodes if node.kind == CALL])
    values = {"traceEvents": events.all, "displayTimeUnit": "ms"}
    try:
        data = orjson.dumps(values)
    except orjson.JSONEncodeError:  # a name has a lone surrogate
        data = as_json(values).encode("utf-8", "replace")
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"trace {str(path)!r}: {error.strerror or error}") from error


class _Events:
    """The events of a trace file. Processes and tracks are numbered from 1."""

    def __init__(self, first: float) -> None:
        self.all: list[Event] = []
        self._first = first
        self._numbers = count(1)
        self._arrows = count(1)

    def add_program(self, timeline: Timeline) -> None:
        """Add a program as a process with its tracks."""
        process = self._name_process(timeline.id)
        self._add_track(process, "program", 0, timeline.lives)
        known: dict[Hashable, tuple[Slice, int]] = {}
        for order, (name, nodes) in enumerate(_tracks(timeline.nodes), 1):
            track = self._add_track(process, name, order, nodes)
            known |= {node.key: (node, track) for node in nodes}
        for node, track in known.values():
            for parent, other in (known[key] for key in node.parents if key in known):
                if track != other:
                    self._add_arrow(process, (parent, other), (node, track))

    def add_engines(self, calls: Sequence[Slice]) -> None:
        """Add, for each engine that ran these calls, a process with counters."""
        by_engine: dict[str, list[Slice]] = defaultdict(list)
        for call in calls:
            if call.report is not None:
                by_engine[call.report.replica].append(call)
        for replica, engine_calls in by_engine.items():
            process = self._name_process(f"engine {replica}".strip())
            parts = [part for call in engine_calls for part in call.inner]
            self._count(process, "running", [part for part in parts if part.kind in _RUNS])
            self._count(process, "waiting", [part for part in parts if part.kind not in _RUNS])
            last = 0
            for at, step in sorted(point for call in engine_calls for point in call.steps):
                last = max(last, step)
                self._add("C", process, at, name="step", args={"step": last})

    def _name_process(self, name: str) -> int:
        process = next(self._numbers)
        self._add("M", process, None, name="process_name", args={"name": name})
        self._add("M", process, None, name="process_sort_index", args={"sort_index": process})
        return process

    def _add_track(self, process: int, name: str, order: int, slices: Iterable[Slice]) -> int:
        track = next(self._numbers)
        self._add("M", process, None, tid=track, name="thread_name", args={"name": name})
        self._add(
            "M", process, None, tid=track, name="thread_sort_index", args={"sort_index": order}
        )
        for slice_ in slices:
            self._add_slice(process, track, slice_)
        return track

    def _add_slice(self, process: int, track: int, slice_: Slice) -> None:
        about = {key: value for key, value in slice_.about.items() if value != ""}
        self._add(
            "X",
            process,
            slice_.since,
            tid=track,
            dur=(self._ns(slice_.until) - self._ns(slice_.since)) / 1e3,
            name=slice_.name,
            cat=slice_.kind,
            args=about,
        )
        for inner in slice_.inner:
            self._add_slice(process, track, inner)

    def _add_arrow(self, process: int, since: tuple[Slice, int], until: tuple[Slice, int]) -> None:
        """Add an arrow from the end of a node to the start of another."""
        same = {"id": next(self._arrows), "name": "then", "cat": "then"}
        (parent, parent_track), (node, node_track) = since, until
        # Perfetto requires that an arrow starts within its slice.
        at = max(parent.since, parent.until - 2 / _NS)
        self._add("s", process, at, tid=parent_track, **same)
        self._add("f", process, node.since, tid=node_track, bp="e", **same)

    def _count(self, process: int, name: str, parts: Sequence[Slice]) -> None:
        """Add a counter of the number of ``parts`` at each time, by level."""
        levels = sorted({int(part.about["level"]) for part in parts})
        counts = dict.fromkeys(levels, 0)
        changes = [(part.since, 1, part.about["level"]) for part in parts]
        changes += [(part.until, -1, part.about["level"]) for part in parts]
        for at, change, level in sorted(changes):
            counts[level] += change
            args = {level_name(each): number for each, number in counts.items()}
            self._add("C", process, at, name=name, args=args)

    def _add(self, phase: str, process: int, at: float | None, **fields: Any) -> None:
        when = {} if at is None else {"ts": self._ns(at) / 1e3}
        self.all.append({"ph": phase, "pid": process, **when, **fields})

    def _ns(self, at: float) -> int:
        return round((at - self._first) * _NS)


def _tracks(nodes: Iterable[Slice]) -> Iterator[tuple[str, list[Slice]]]:
    """Yield the tracks with their names. A branch has several tracks if some of its nodes overlap,
    because nodes on one track must not overlap.

    A node is put on the track of a node that it follows if that track is free.
    """
    branches: dict[str, list[list[Slice]]] = {}
    for node in sorted(nodes, key=lambda node: (node.since, node.until)):
        tracks = branches.setdefault(node.branch, [])
        free = [track for track in tracks if track[-1].until <= node.since]
        after = [track for track in free if track[-1].key in node.parents]
        if not free:
            tracks.append([])
        (after or free or tracks[-1:])[0].append(node)
    for branch, tracks in branches.items():
        for number, track in enumerate(tracks, 1):
            yield (branch if number == 1 else f"{branch} ({number})"), track
