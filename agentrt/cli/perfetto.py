"""Writes timelines as a file that Perfetto opens (ui.perfetto.dev), in Chrome's trace format.

A program is a process there: its first track has its lives, each other one a branch, whose nodes
are slices with the parts of a call inside, and arrows go from what had to end to what came next.
Each engine is a process with counters: the calls that run and wait by their level, and its steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import orjson

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
    """Write the file; its time begins with the first program. Raises `ConfigError`."""
    check_output("trace", path)  # there may be a journal by now
    first = min((one.since for line in timelines for one in line.lives), default=0.0)
    events = _Events(first)
    for timeline in timelines:
        events.add_program(timeline)
    events.add_engines([node for line in timelines for node in line.nodes if node.kind == CALL])
    try:
        path.write_bytes(orjson.dumps({"traceEvents": events.all, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise ConfigError(f"trace {str(path)!r}: {error.strerror or error}") from error


class _Events:
    """The events of a file so far. Processes and tracks have numbers of their own."""

    def __init__(self, first: float) -> None:
        self.all: list[Event] = []
        self._first = first
        self._numbers = count(1)
        self._arrows = count(1)

    def add_program(self, timeline: Timeline) -> None:
        """A process with its tracks."""
        process = self._name_process(timeline.id)
        self._add_track(process, "program", 0, timeline.lives)
        known: dict[Hashable, tuple[Slice, int]] = {}
        for order, (name, nodes) in enumerate(_lanes(timeline.nodes), 1):
            track = self._add_track(process, name, order, nodes)
            known |= {node.key: (node, track) for node in nodes}
        for node, track in known.values():
            for parent, other in (known[key] for key in node.parents if key in known):
                if track != other:
                    self._add_arrow(process, (parent, other), (node, track))

    def add_engines(self, calls: Sequence[Slice]) -> None:
        """A process with counters for each engine that these calls ran in."""
        by_engine: dict[str, list[Slice]] = defaultdict(list)
        for call in calls:
            if call.report is not None:
                by_engine[call.report.replica].append(call)
        for replica, its in by_engine.items():
            process = self._name_process(f"engine {replica}".strip())
            parts = [part for call in its for part in call.inner]
            self._count(process, "running", [one for one in parts if one.kind in _RUNS])
            self._count(process, "waiting", [one for one in parts if one.kind not in _RUNS])
            last = 0
            for at, step in sorted(point for call in its for point in call.steps):
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
        for one in slices:
            self._add_slice(process, track, one)
        return track

    def _add_slice(self, process: int, track: int, one: Slice) -> None:
        about = {key: value for key, value in one.about.items() if value != ""}
        self._add(
            "X",
            process,
            one.since,
            tid=track,
            dur=(self._ns(one.until) - self._ns(one.since)) / 1e3,
            name=one.name,
            cat=one.kind,
            args=about,
        )
        for inner in one.inner:
            self._add_slice(process, track, inner)

    def _add_arrow(self, process: int, since: tuple[Slice, int], until: tuple[Slice, int]) -> None:
        """From the end of a node to the beginning of another."""
        same = {"id": next(self._arrows), "name": "then", "cat": "then"}
        (parent, one), (node, other) = since, until
        # It has to begin inside of its slice.
        at = max(parent.since, parent.until - 2 / _NS)
        self._add("s", process, at, tid=one, **same)
        self._add("f", process, node.since, tid=other, bp="e", **same)

    def _count(self, process: int, name: str, parts: Sequence[Slice]) -> None:
        """How many there are at a time, by their level."""
        levels = sorted({int(one.about["level"]) for one in parts})
        counts = dict.fromkeys(levels, 0)
        changes = [(one.since, 1, one.about["level"]) for one in parts]
        changes += [(one.until, -1, one.about["level"]) for one in parts]
        for at, change, level in sorted(changes):
            counts[level] += change
            args = {level_name(each): number for each, number in counts.items()}
            self._add("C", process, at, name=name, args=args)

    def _add(self, phase: str, process: int, at: float | None, **more: Any) -> None:
        when = {} if at is None else {"ts": self._ns(at) / 1e3}
        self.all.append({"ph": phase, "pid": process, **when, **more})

    def _ns(self, at: float) -> int:
        return round((at - self._first) * _NS)


def _lanes(nodes: Iterable[Slice]) -> Iterator[tuple[str, list[Slice]]]:
    """Tracks with their names: those of a branch, on each of which nothing overlaps.

    What follows a node is on the same one, where that is free.
    """
    branches: dict[str, list[list[Slice]]] = {}
    for node in sorted(nodes, key=lambda one: (one.since, one.until)):
        lanes = branches.setdefault(node.branch, [])
        free = [lane for lane in lanes if lane[-1].until <= node.since]
        after = [lane for lane in free if lane[-1].key in node.parents]
        if not free:
            lanes.append([])
        (after or free or lanes[-1:])[0].append(node)
    for branch, lanes in branches.items():
        for number, lane in enumerate(lanes, 1):
            yield (branch if number == 1 else f"{branch} ({number})"), lane
