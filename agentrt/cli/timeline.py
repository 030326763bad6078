"""Programs as timelines: what they did and when, out of their DAGs or out of a journal.

`agentrt.cli.perfetto` writes them to a file. A call's time in its engine is split as that said
(`agentrt.request.spans`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agentrt.graph import Node
from agentrt.journal.analysis.wall import Recorded, Stay, engine_spans, read_program
from agentrt.journal.analysis.why import level_name
from agentrt.journal.schema import ROOT
from agentrt.journal.store import Store
from agentrt.request import CallReport
from agentrt.runtime.run import Run

CALL, PROGRAM = "call", "program"


@dataclass(frozen=True, slots=True)
class Slice:
    """Something took the time from ``since`` to ``until`` (seconds on one clock).

    ``kind`` is ``program``, ``call``, ``tool``, ``human``, …; in a call, a reason of
    `agentrt.request.spans`. ``about`` is what else is known of it. A node has a ``key`` and the
    keys of its ``parents``, and is on the tracks of its ``branch``.
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
        """Times at which the engine's step is known."""
        if self.report is not None and self.report.steps:
            yield self.inner[0].since if self.inner else self.since, self.report.arrived_step
            yield self.until, self.report.finished_step


@dataclass(frozen=True, slots=True)
class Timeline:
    """A program: its ``lives``, most often one, and its ``nodes``."""

    id: str
    lives: Sequence[Slice]
    nodes: Sequence[Slice]


# -- out of a DAG --------------------------------------------------------------------------


def of_run(run: Run) -> Timeline:
    """A program that has ended in this process."""
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


# -- out of a journal ----------------------------------------------------------------------


def of_journal(store: Store, only: str | None = None) -> list[Timeline]:
    """The programs that a journal has, or ``only`` this one. Raises `JournalError`."""
    query = f"""SELECT id FROM agentrt_programs WHERE id IN
        (SELECT program FROM agentrt_starts WHERE node = '{ROOT}') ORDER BY started, number"""
    ids = [str(row[0]) for row in store.query(query)] if only is None else [only]
    return [_of_recorded(read_program(store, one)) for one in ids]


def _of_recorded(recorded: Recorded) -> Timeline:
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


# -- both ----------------------------------------------------------------------------------


def _node(node: Slice) -> Slice:
    """A node with what its call's report says of it."""
    report = node.report
    if report is None:
        return node
    known = {key: value for key, value in asdict(report).items() if value and key != "spans"}
    return replace(node, about={**node.about, **known}, inner=_inner(node, report))


def _inner(node: Slice, report: CallReport) -> list[Slice]:
    """A call's time in its engine, which ends as the call does."""
    found, until = list[Slice](), node.until
    for span in reversed(engine_spans(report, node.name)):
        since = max(until - span.seconds, node.since)
        if since < until:
            about = {
                "level": span.level,
                "tokens": span.tokens,
                "attained_s": span.attained_s,
                "by": ", ".join(one.program for one in span.by),
            }
            found.append(
                Slice(f"{span.reason}, {level_name(span.level)}", span.reason, since, until, about)
            )
        until = since
    return found[::-1]
