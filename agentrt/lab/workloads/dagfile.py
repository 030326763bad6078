"""Execution DAGs that ``agentrt run --dag FILE.json`` wrote, as programs to run again.

Tools, humans and calls that gave nothing (failed, cancelled) become the gap before the calls
that waited for them: the time from the end of the last earlier call to the emission of this
one. A call extends the longest earlier call that its engine found in the prefix cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentrt.lab.workloads.fields import Fields, Notes
from agentrt.lab.workloads.replay import Replay, Scales
from agentrt.lab.workloads.shape import ProgramShape

_BLOCK = 16
"""Tokens in a block of the prefix cache: what is cached may be so much shorter."""

UNREADABLE = "programs that cannot be read, left out"
NO_CALLS = "programs without a call that ended, left out"
NO_OUTPUT = "calls that gave nothing (failed or cancelled), their time taken as a gap"
NO_END = "calls without the time of their end, the gap after them taken as 0 s"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A node that was read: the calls that it stands for, whether a human is in it.

    A call stands for itself; an interrupt for the calls before it.
    """

    calls: tuple[int, ...]
    human: bool = False


def read(entries: Sequence[Fields], type: str, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """One program per DAG, of the type that the DAG names."""
    began: list[float] = []
    programs: list[ProgramShape] = []
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            at_s = _created(entry)
            program = _program(entry, type, at_s or 0.0, scales, notes)
            began += [] if at_s is None else [at_s]
            programs += [] if program is None else [program]
    first = min(began, default=0.0)
    return [program.arriving(program.arrives_s - first) for program in programs]


def _program(
    entry: Fields, type: str, began_s: float, scales: Scales, notes: Notes
) -> ProgramShape | None:
    replay = _calls(entry, began_s, scales, notes)
    if not replay.calls:
        notes[NO_CALLS] += 1
        return None
    head = entry.object("program")
    if head is None:
        raise entry.complain("'program' is missing")
    return ProgramShape(head.text("id"), head.text("type", type), tuple(replay.calls), began_s)


def _created(entry: Fields) -> float | None:
    if entry.values.get("version") != 1:
        said = entry.values.get("version", "none")
        raise entry.complain(f"a DAG of version {said!r}: this agentrt reads version 1")
    times = (node.number("created_at") for node in entry.objects("nodes"))
    return min((at_s for at_s in times if at_s is not None), default=None)


def _calls(entry: Fields, began_s: float, scales: Scales, notes: Notes) -> Replay:
    replay = Replay(scales, notes)
    seen: dict[int, _Seen] = {}
    ends: list[float | None] = []
    reports: list[Fields] = []
    for node in entry.objects("nodes"):
        parents = _parents(node, seen)
        before = tuple(sorted({call for parent in parents for call in parent.calls}))
        human = any(parent.human for parent in parents)
        report = _report(node, notes)
        if report is None:
            seen[node.tokens("id")] = _Seen(before, human or node.text("kind") == "human")
            continue
        index = replay.call(
            _place(node),
            report.tokens("prompt_tokens"),
            report.tokens("output_tokens"),
            after=before,
            extends=_extended(report, before, reports),
            gap_s=_gap(node, before, ends, began_s, notes),
            human=human,
        )
        seen[node.tokens("id")] = _Seen((index,))
        ends.append(node.number("ended_at"))
        reports.append(report)
    return replay


def _report(node: Fields, notes: Notes) -> Fields | None:
    """A call's report; None for an interrupt, and for a call that did not run to its end."""
    kind = node.text("kind")
    if kind not in ("call", "tool", "human"):
        raise node.complain(f"'kind' is {kind!r}: it is call, tool or human")
    if kind != "call":
        return None
    report = node.object("report")
    if report is None or not report.number("output_tokens"):
        notes[NO_OUTPUT] += 1
        return None
    return report


def _parents(node: Fields, seen: Mapping[int, _Seen]) -> list[_Seen]:
    own = node.tokens("id")
    if own in seen:
        raise node.complain(f"two nodes have the id {own}")
    parents = node.values.get("parents")
    if not isinstance(parents, list):
        raise node.complain("'parents' is not a list of ids")
    for parent in parents:
        if not isinstance(parent, int) or parent not in seen:
            raise node.complain(f"the parent {parent!r} is not a node before this one")
    return [seen[parent] for parent in parents]


def _gap(
    node: Fields,
    before: Sequence[int],
    ends: Sequence[float | None],
    began_s: float,
    notes: Notes,
) -> float:
    created = node.number("created_at")
    if created is None:
        raise node.complain("'created_at' is missing")
    known = [end for end in (ends[call] for call in before) if end is not None]
    if len(known) < len(before):
        notes[NO_END] += 1
        return 0.0
    return max(0.0, created - max(known, default=began_s))


def _extended(report: Fields, before: Sequence[int], reports: Sequence[Fields]) -> int | None:
    cached = report.number("cached_tokens") or 0.0
    prompt = report.tokens("prompt_tokens")
    cached_by = {
        call: reports[call].tokens("prompt_tokens")
        for call in before
        if _was_cached(reports[call], prompt, cached)
    }
    return max(cached_by, key=lambda call: cached_by[call], default=None)


def _was_cached(earlier: Fields, prompt: int, cached: float) -> bool:
    """True if that call's prompt was cached, and this one has room for it and its output."""
    begin = earlier.tokens("prompt_tokens")
    found = cached > 0 and cached + _BLOCK > begin
    return found and begin + earlier.tokens("output_tokens") <= prompt


def _place(node: Fields) -> str:
    return node.text("scope", "").rsplit("/", 1)[-1] or node.text("name", "call")
