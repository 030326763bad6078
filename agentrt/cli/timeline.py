"""Timelines of programs: the activities of each program and their times, from its DAG or from a
journal.

`agentrt.cli.perfetto` writes timelines to a file. A call's time in the engine is split into the
spans that the engine reported (`agentrt.request.spans`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentrt.graph import Node
from agentrt.journal.analysis.wall import RecordedTime, Stay, engine_spans, read_program
from agentrt.journal.analysis.why import level_name
from agentrt.journal.schema import ROOT
from agentrt.journal.store import Store
from agentrt.request import CallReport
from agentrt.runtime.run import Run

CALL, PROGRAM = "call", "program"


@dataclass(frozen=True, slots=True)
class Slice:
    """A span of time of a program, of a node or of a phase within a call. ``since`` and ``until``
    are seconds on one clock for all slices.

    ``kind`` is ``program``, ``call``, ``tool``, ``human`` and so on; for a phase of a call it is a
    reason of `agentrt.journal.analysis.wall`. ``about`` holds further facts, which the viewer
    shows. A node has a ``key`` and the keys of its ``parents``, and is shown on the tracks of its
    ``branch``. The phases of a call are in ``inner``.
    """

    name: str
    kind: str
    since: float
    until: float
    about: Mapping[str, Any] = field(default_factory=dict)
    key: Hashable = None
    parents: Sequence[Hashable] = ()
    branch: str = ""
    inner: Sequence[Slice] = ()
    report: CallReport | None = None

    @property
    def steps(self) -> Iterator[tuple[float, int]]:
        """The times at which the engine's step number is known, each with this number."""
        if self.report is not None and self.report.steps:
            yield self.inner[0].since if self.inner else self.since, self.report.arrived_step
            yield self.until, self.report.finished_step


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a program. ``lives`` are the spans in which a process ran the program:
    several if the program was resumed.
    """

    id: str
    lives: Sequence[Slice]
    nodes: Sequence[Slice]


# -- from a DAG ----------------------------------------------------------------------------


def of_run(run: Run) -> Timeline:
    """Return the timeline of a program that has ended in this process."""
    until = run.started_at if run.ended_at is None else run.ended_at
    about = {key: value for key, value in asdict(run.report(until)).items() if value}
    life = Slice(run.type, PROGRAM, run.started_at, until, about)
    return Timeline(run.id, [life], [_of_node(node, until) for node in run.dag.nodes()])


def _of_node(node: Node, over: float) -> Slice:
    until = over if node.ended_at is None else node.ended_at
    about: dict[str, Any] = {"node": node.id, "state": str(node.state), "scope": node.scope}
    about |= {"error": node.error} if node.error else {}
    return _node(
        Slice(
            node.name,
            str(node.kind),
            node.created_at,
            until,
            about,
            node.id,
            node.parents,
            node.scope,
            report=node.report,
        )
    )


# -- from a journal ------------------------------------------------------------------------


def of_journal(store: Store, only: str | None = None) -> list[Timeline]:
    """Return the timelines of all programs in a journal that have started, or only of the program
    ``only``. Raises `JournalError` if a program is damaged, or if ``only`` is missing or has not
    started yet.
    """
    query = f"""SELECT id FROM agentrt_programs WHERE id IN
        (SELECT program FROM agentrt_starts WHERE node = '{ROOT}') ORDER BY started, number"""
    ids = [str(row[0]) for row in store.query(query)] if only is None else [only]
    return [_of_recorded(read_program(store, program)) for program in ids]


def _of_recorded(recorded: RecordedTime) -> Timeline:
    row, lives, nodes = recorded.program, [], list[Slice]()
    same = {"tenant": row.tenant, "session": row.session or "", "seed": row.seed}
    for number, life in enumerate(recorded.lives, 1):
        about: dict[str, Any] = {"state": life.state, "life": number, **same}
        lives.append(Slice(row.type, PROGRAM, life.since, life.until, about))
        nodes += [_of_stay(stay) for stay in life.stays]
    return Timeline(row.id, lives, nodes)


def _of_stay(stay: Stay) -> Slice:
    start = stay.start
    about: dict[str, Any] = {"node": start.node, "state": stay.state, "scope": start.scope}
    about |= {"attempt": start.attempt} if start.attempt > 1 else {}
    parents = () if stay.end is None else stay.end.parents.split()
    return _node(
        Slice(
            start.name,
            start.kind,
            start.started,
            stay.until,
            about,
            start.node,
            parents,
            f"{start.scope} {start.node.rpartition('#')[0]}",
            report=stay.report,
        )
    )


# -- for both ------------------------------------------------------------------------------


def _node(node: Slice) -> Slice:
    """Return a node with the facts and phases of its call's report, if it has a report."""
    report = node.report
    if report is None:
        return node
    known = {key: value for key, value in asdict(report).items() if value and key != "spans"}
    return replace(node, about={**node.about, **known}, inner=_inner(node, report))


def _inner(node: Slice, report: CallReport) -> list[Slice]:
    """Return the phases of a call in its engine. The last phase ends when the call ends."""
    phases, until = list[Slice](), node.until
    for span in reversed(engine_spans(report, node.name)):
        since = max(until - span.seconds, node.since)
        if since < until:
            about = {
                "level": span.level,
                "tokens": span.tokens,
                "attained_s": span.attained_s,
                "by": ", ".join(share.program for share in span.by),
            }
            phases.append(
                Slice(f"{span.reason}, {level_name(span.level)}", span.reason, since, until, about)
            )
        until = since
    return phases[::-1]
