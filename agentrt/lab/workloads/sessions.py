"""A reader of sessions of coding agents, from files with a JSON object in each line, with token
counts and times.

A session has ``id``, ``start`` (seconds since the start of the first session), ``tool_tokens``,
``system_tokens`` and ``calls``. A call has these fields:

- ``t``: the start of the call, in seconds since the start of the session
- ``in`` and ``out``: prompt and output tokens
- ``blk``: blocks of the prompt
- ``hit_blk``: leading blocks that are equal to the blocks of the previous prompt
- ``stop``: the stop reason
- ``gap``: seconds since the end of the previous call
- ``api``: seconds that the call took

An entry with ``sub`` is a subagent, which has ``calls``, too. Its ``t`` is the time of its **end**,
which is ``dur_ms`` milliseconds after its start.

Weka's files have the same data under other names (``requests``, ``api_time``, ``think_time``,
``type``), and the hashes of blocks, ``hash_ids`` (callanjfox/kv-cache-tester,
docs/trace_replay_tester.md; ``aiperf``, dataset/loader/weka_trace_models.py). They are read by the
rules of the scenario ``inferencex-agentx-mvp`` of ``aiperf``: prompts and outputs have the recorded
lengths, sessions share no prefix, and no gap is longer than `IDLE_S`. This scenario shortens the
times in which no session has a call; here, each gap is shortened instead.

The calls of a session are a chain. Subagents between two calls are parallel branches: they begin
after the end of the first call, and the second call waits for the subagents that had ended when the
second call began. A gap after the stop reason ``end_turn`` is the time of a human. A subagent that
cannot be read is left out of its session; after any other fault, the whole session is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from pydantic import AliasChoices, Field

from agentrt.lab.workloads.fields import LocatedFields, Notes, Number, Record, Tokens
from agentrt.lab.workloads.replay import REWRITTEN, ScaledCalls, Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape

_KEPT = 0.9
"""Share of the previous prompt's blocks. A prompt that begins with at least this share, and is not
shorter than the previous prompt, extends it.
"""
_WHOLE_SECONDS = 1.0
"""Tolerance, in seconds, for comparing the start of a call with the end of an earlier branch. It is
needed because starts are rounded to whole seconds, and ends are not.
"""

UNREADABLE = "sessions that cannot be read, left out"
UNREADABLE_SUBAGENT = "subagents that cannot be read, left out"
NO_CALLS = "sessions or subagents without calls, left out"
UNKNOWN_GAP = "gaps that are not in the file, taken as 0 s"
UNKNOWN_STOP = "gaps after an unknown stop reason, counted as the time of a tool"
IDLE_S = 10.0
CUT = f"gaps of more than {IDLE_S:g} s, shortened to {IDLE_S:g} s"
DETACHED = "subagents that end after the next call began, so that no call waits for them"


class _Call(Record):
    prompt: Tokens = Field(alias="in")
    out: Tokens
    blk: Number | None = None
    hit_blk: Number | None = None
    hash_ids: list[int] | None = None
    stop: str | None = None
    gap: Number | None = Field(None, validation_alias=AliasChoices("gap", "think_time"))
    api: Number | None = Field(None, validation_alias=AliasChoices("api", "api_time"))


class _OwnCall(_Call):
    """A call of the agent itself, not of a subagent. In the file, such a call has a start time."""

    t: Number


class _Subagent(Record):
    t: Number
    dur_ms: Number = Field(validation_alias=AliasChoices("dur_ms", "duration_ms"))
    kind: str | None = Field(None, validation_alias=AliasChoices("kind", "subagent_type"))
    calls: list[_Call] = Field(validation_alias=AliasChoices("calls", "requests"))


class _SessionsHead(Record):
    id: str
    start: Number | None = None
    tool_tokens: Number | None = None
    system_tokens: Number | None = None


@dataclass(frozen=True, slots=True)
class _Branch:
    """An ended subagent: its last call, and its end in seconds since the start of the session."""

    last: int
    ended_s: float


def read(
    entries: Sequence[LocatedFields],
    type: str,
    scales: Scales,
    notes: Notes,
    *,
    exact: bool = False,
) -> list[ProgramShape]:
    """Return a program of this type for each session that has calls. Sessions without calls, and
    sessions that cannot be read, are left out and counted in ``notes``.

    With ``exact``, prompts keep their lengths (`ScaledCalls`), and sessions share no prefix.
    """
    programs: list[ProgramShape] = []
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            replay = ScaledCalls(scales, notes, exact=exact)
            program = _program(entry, type, replay, notes, shares=not exact)
            programs += [] if program is None else [program]
    return programs


def read_weka(
    entries: Sequence[LocatedFields], type: str, scales: Scales, notes: Notes
) -> list[ProgramShape]:
    """Return a program of this type for each session of a Weka file that has calls and can be read.
    Gaps longer than `IDLE_S` are shortened.
    """
    longest_s = IDLE_S * scales.gap

    def cut(call: CallShape) -> CallShape:
        notes.update([CUT] * (call.gap_s > longest_s))
        return replace(call, gap_s=min(call.gap_s, longest_s))

    return [
        replace(program, calls=tuple(map(cut, program.calls)))
        for program in read(entries, type, scales, notes, exact=True)
    ]


def _program(
    entry: LocatedFields, type: str, replay: ScaledCalls, notes: Notes, *, shares: bool
) -> ProgramShape | None:
    session = _Session(replay, notes)
    for call in entry.inside("requests" if "requests" in entry.values else "calls"):
        if "sub" in call.values or call.values.get("type") == "subagent":
            with notes.leaving_out(UNREADABLE_SUBAGENT):
                session.subagent(call.read(_Subagent))
        else:
            session.own_call(call.read(_OwnCall))
    if not replay.calls:
        notes[NO_CALLS] += 1
        return None
    head = entry.read(_SessionsHead)
    shared = int(head.tool_tokens or 0) + int(head.system_tokens or 0)
    return ProgramShape(
        head.id,
        type,
        tuple(replay.calls),
        head.start or 0.0,
        system_tokens=replay.system_tokens(shared if shares else 0),
    )


class _Session:
    """The calls and subagents of one session that have been read so far."""

    def __init__(self, replay: ScaledCalls, notes: Notes) -> None:
        self.replay = replay
        self._notes = notes
        self._main: int | None = None
        self._before: _OwnCall | None = None
        self._branches: list[_Branch] = []

    def own_call(self, call: _OwnCall) -> None:
        """Add a call of the agent itself. The call waits for the agent's previous call, and for the
        subagents added since then that had ended when this call began.
        """
        joined = self._joined(call.t)
        after = [] if self._main is None else [self._main]
        gap_s = self._gap(call, self._before)
        if joined:
            gap_s = max(0.0, call.t - max(branch.ended_s for branch in joined))
        after += [branch.last for branch in joined]
        self._main = self._add(call, "main", self._before, self._main, after, gap_s)
        self._before = call

    def subagent(self, sub: _Subagent) -> None:
        """Add a subagent: a chain of calls that begins after the end of the agent's last call."""
        if not sub.calls:
            self._notes[NO_CALLS] += 1
            return
        node = "subagent" if sub.kind is None else sub.kind.lower()
        started_s = max(0.0, sub.t - sub.dur_ms / 1000)
        after = () if self._main is None else (self._main,)
        last = self._add(sub.calls[0], node, None, None, after, self._until(started_s))
        for before, call in pairwise(sub.calls):
            last = self._add(call, node, before, last, (last,), self._gap(call, before))
        self._branches.append(_Branch(last, sub.t))

    def _add(
        self,
        call: _Call,
        node: str,
        before: _Call | None,
        previous: int | None,
        after: Sequence[int],
        gap_s: float,
    ) -> int:
        return self.replay.add(
            CallShape(
                call.out,
                call.prompt,
                after=tuple(after),
                gap_s=gap_s,
                node=node,
                extends=previous if before is None or self._extends(call, before) else None,
                human=before is not None and before.stop == "end_turn",
            )
        )

    def _extends(self, call: _Call, before: _Call) -> bool:
        blocks, hit = before.blk, call.hit_blk
        if before.hash_ids is not None and call.hash_ids is not None:
            pairs = zip(before.hash_ids, call.hash_ids, strict=False)
            alike = takewhile(lambda pair: pair[0] == pair[1], pairs)
            blocks, hit = len(before.hash_ids), sum(1 for _ in alike)
        kept = blocks is None or hit is None or hit >= _KEPT * blocks
        if kept and call.prompt >= before.prompt:
            return True
        self._notes[REWRITTEN] += 1
        return False

    def _gap(self, call: _Call, before: _Call | None) -> float:
        if call.gap is None and before is not None:
            self._notes[UNKNOWN_GAP] += 1
        elif before is not None and before.stop not in ("tool_use", "end_turn"):
            self._notes[UNKNOWN_STOP] += 1
        return call.gap or 0.0

    def _until(self, started_s: float) -> float:
        """Return the seconds from the end of the agent's last call to ``started_s``, at least 0.

        The result is 0 if the end of this call is unknown, and ``started_s`` if the agent has made
        no call yet.
        """
        if self._before is None:
            return started_s
        if self._before.api is None:
            self._notes[UNKNOWN_GAP] += 1
            return 0.0
        return max(0.0, started_s - self._before.t - self._before.api)

    def _joined(self, now_s: float) -> list[_Branch]:
        """Return the subagents since the agent's last call that have ended by ``now_s``. Then drop
        all subagents from the state.
        """
        joined = [branch for branch in self._branches if branch.ended_s <= now_s + _WHOLE_SECONDS]
        if len(joined) < len(self._branches):
            self._notes[DETACHED] += len(self._branches) - len(joined)
        self._branches = []
        return joined
