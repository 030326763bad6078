"""A reader that turns execution DAGs into programs that can be run again. ``agentrt run --dag
FILE.json`` writes such DAGs.

Tools, humans, and calls without a result (failed or cancelled) become gaps. The gap before a call
is the time from the end of the last call on which it depends until the call was emitted. A call
extends one of the calls on which it depends: the call with the longest prompt, among those whose
prompts were in the prefix cache when the extending call began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrt.lab.workloads.fields import LocatedFields, Notes, Number, Record, Tokens
from agentrt.lab.workloads.replay import ScaledCalls, Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape

_BLOCK = 16
"""Number of tokens in a block of the prefix cache. The cached part of a prompt may be up to one
block shorter than the prompt that was cached.
"""

UNREADABLE = "programs that cannot be read, left out"
NO_CALLS = "programs without a call that ended, left out"
NO_OUTPUT = "calls without a result (failed or cancelled), their time taken as a gap"
NO_END = "calls without an end time, the gap after them taken as 0 s"


class _Report(Record):
    prompt_tokens: Tokens
    output_tokens: Tokens
    cached_tokens: Number | None = None


class _Node(Record):
    id: Tokens
    kind: Literal["call", "tool", "human", "event"]
    name: str | None = None
    scope: str | None = None
    parents: list[int]
    created_at: Number
    ended_at: Number | None = None
    report: dict[str, Any] | None = None


class _DagHead(Record):
    id: str
    type: str | None = None
    tenant: str = "default"
    started_at: Number | None = None


class _Dag(Record):
    version: Literal[1]
    program: _DagHead
    nodes: list[_Node]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A node that was read. ``calls`` are the calls that become parents of a call after this node.

    For a call with a result, this is the call itself; for another node, these are the calls before
    it. ``human`` is True if one of the interrupts since these calls is a question to a human, and
    ``tool`` is the name of a tool among them.
    """

    calls: tuple[int, ...]
    human: bool = False
    tool: str = ""


def read(
    entries: Sequence[LocatedFields], type: str, scales: Scales, notes: Notes
) -> list[ProgramShape]:
    """Return a program for each DAG that has a call with a result.

    The program's type is the type in the DAG, or by default ``type``. Entries that cannot be read,
    and DAGs without such a call, are left out and counted in ``notes``.
    """
    began: list[float] = []
    programs: list[ProgramShape] = []
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            dag = entry.read(_Dag)
            at_s = dag.program.started_at
            if at_s is None:
                at_s = min((node.created_at for node in dag.nodes), default=0.0)
            calls = _calls(entry, dag, at_s, scales, notes)
            began += [at_s] if dag.nodes else []
            if calls:
                kind = dag.program.type or type
                programs.append(
                    ProgramShape(dag.program.id, kind, calls, at_s, tenant=dag.program.tenant)
                )
            else:
                notes[NO_CALLS] += 1
    first = min(began, default=0.0)
    return [program.arriving(program.arrives_s - first) for program in programs]


def _calls(
    entry: LocatedFields, dag: _Dag, began_s: float, scales: Scales, notes: Notes
) -> tuple[CallShape, ...]:
    replay = ScaledCalls(scales, notes)
    seen: dict[int, _Seen] = {}
    ends: list[float | None] = []
    reports: list[_Report] = []
    for index, node in enumerate(dag.nodes):
        where = LocatedFields(f"{entry.where}, nodes[{index}]", {})
        if node.id in seen:
            raise where.complain(f"two nodes have the id {node.id}; give each its own id")
        for parent in node.parents:
            if parent not in seen:
                raise where.complain(f"the parent {parent!r} is not an earlier node")
        parents = [seen[parent] for parent in node.parents]
        before = tuple(sorted({call for parent in parents for call in parent.calls}))
        human = any(parent.human for parent in parents)
        tool = max((parent.tool for parent in parents), default="")
        report = _report(node, where, notes)
        if report is None:
            used = (node.name or "") if node.kind == "tool" else tool
            seen[node.id] = _Seen(before, human or node.kind == "human", used)
            continue
        call = replay.add(
            CallShape(
                report.output_tokens,
                report.prompt_tokens,
                after=before,
                gap_s=_gap(node, before, ends, began_s, notes),
                node=_place(node),
                extends=_extended(report, before, reports),
                human=human,
                tool=tool,
            )
        )
        seen[node.id] = _Seen((call,))
        ends.append(node.ended_at)
        reports.append(report)
    return tuple(replay.calls)


def _report(node: _Node, where: LocatedFields, notes: Notes) -> _Report | None:
    """Return the report of a call; None for an interrupt, and for a call without a result."""
    if node.kind != "call":
        return None
    if not node.report or not node.report.get("output_tokens"):
        notes[NO_OUTPUT] += 1
        return None
    return LocatedFields(f"{where.where}, report", node.report).read(_Report)


def _gap(
    node: _Node,
    before: Sequence[int],
    ends: Sequence[float | None],
    began_s: float,
    notes: Notes,
) -> float:
    known = [end for end in (ends[call] for call in before) if end is not None]
    if len(known) < len(before):
        notes[NO_END] += 1
        return 0.0
    return max(0.0, node.created_at - max(known, default=began_s))


def _extended(report: _Report, before: Sequence[int], reports: Sequence[_Report]) -> int | None:
    held = [call for call in before if _was_cached(reports[call], report)]
    return max(held, key=lambda call: reports[call].prompt_tokens, default=None)


def _was_cached(earlier: _Report, report: _Report) -> bool:
    """Return whether the earlier prompt was in the cache for this call, and this call's prompt is
    long enough to contain the earlier prompt and output.
    """
    begin, cached = earlier.prompt_tokens, report.cached_tokens or 0.0
    is_cached = cached > 0 and cached + _BLOCK > begin
    return is_cached and begin + earlier.output_tokens <= report.prompt_tokens


def _place(node: _Node) -> str:
    return (node.scope or "").rsplit("/", 1)[-1] or node.name or "call"
