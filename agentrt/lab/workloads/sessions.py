"""Sessions of coding agents: one JSON object a line, token counts and times without text.

A session has ``id``, ``start`` (seconds after the first), ``tool_tokens``, ``system_tokens`` and
``calls``. A call has ``t`` (its start, seconds from the session's), ``in`` and ``out`` (tokens),
``blk`` and ``hit_blk`` (blocks in its prompt; leading ones equal to the previous prompt's),
``stop``, ``gap`` (seconds since the previous call's end) and ``api`` (seconds that it took). An
entry with ``sub`` is a subagent with ``calls`` of its own; its ``t`` is when it **ended**,
``dur_ms`` after it began.

Calls make a chain. Subagents between two calls are parallel branches that begin with the end
of the first and that the second waits for. A gap after ``end_turn`` is a human's.
A subagent that cannot be read is left out of its session; any other fault costs the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentrt.errors import ConfigError
from agentrt.lab.workloads.fields import Fields, Notes
from agentrt.lab.workloads.replay import Replay, Scales
from agentrt.lab.workloads.shape import ProgramShape

_KEPT = 0.9
"""A prompt with this share of the previous prompt's blocks at its start extends it."""
_WHOLE_SECONDS = 1.0
"""Starts are given in whole seconds, ends are not: they may cross by so much."""

UNREADABLE = "sessions that cannot be read, left out"
UNREADABLE_SUBAGENT = "subagents that cannot be read, left out"
NO_CALLS = "sessions or subagents without calls, left out"
UNKNOWN_GAP = "gaps that the file does not know, taken as 0 s"
UNKNOWN_STOP = "gaps after an unknown stop, taken as a tool's"
REWRITTEN = "prompts that do not begin with the previous one (a rewritten context)"
DETACHED = "subagents that end after the next call began, so that nothing waits for them"


@dataclass(frozen=True, slots=True)
class _Branch:
    """A subagent that has ended: its last call, and when (seconds from the session's start)."""

    last: int
    ended_s: float


def read(entries: Sequence[Fields], type: str, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """One program per session, all of this type."""
    programs: list[ProgramShape] = []
    for entry in entries:
        with notes.leaving_out(UNREADABLE):
            program = _program(entry, type, scales, notes)
            programs += [] if program is None else [program]
    return programs


def _program(entry: Fields, type: str, scales: Scales, notes: Notes) -> ProgramShape | None:
    session = _Session(Replay(scales, notes), notes)
    for call in entry.objects("calls"):
        if "sub" in call.values:
            with notes.leaving_out(UNREADABLE_SUBAGENT):
                session.subagent(call)
        else:
            session.main_call(call)
    replay = session.replay
    if not replay.calls:
        notes[NO_CALLS] += 1
        return None
    shared = sum(int(entry.number(name) or 0) for name in ("tool_tokens", "system_tokens"))
    return ProgramShape(
        entry.text("id"),
        type,
        tuple(replay.calls),
        entry.number("start") or 0.0,
        system_tokens=replay.system_tokens(shared),
    )


class _Session:
    """Where one session stands while its calls are read."""

    def __init__(self, replay: Replay, notes: Notes) -> None:
        self.replay = replay
        self._notes = notes
        self._main: int | None = None
        self._before: Fields | None = None
        self._branches: list[_Branch] = []

    def main_call(self, call: Fields) -> None:
        """A call of the agent itself: after the last one and the subagents since."""
        joined = self._joined(_seconds(call, "t"))
        after = [] if self._main is None else [self._main]
        gap_s = self._gap(call, self._before)
        if joined:
            gap_s = max(0.0, _seconds(call, "t") - max(branch.ended_s for branch in joined))
        after += [branch.last for branch in joined]
        self._main = self._add(call, "main", self._before, self._main, after, gap_s)
        self._before = call

    def subagent(self, sub: Fields) -> None:
        """A chain of its own, which begins when the agent's last call has ended.

        Raises `ConfigError` if it cannot be read; then none of its calls stays in the session.
        """
        calls = sub.objects("calls")
        if not calls:
            self._notes[NO_CALLS] += 1
            return
        before = len(self.replay.calls)
        try:
            self._branches.append(self._branch(sub, calls))
        except ConfigError:
            del self.replay.calls[before:]
            raise

    def _branch(self, sub: Fields, calls: Sequence[Fields]) -> _Branch:
        node = sub.text("kind", "subagent").lower()
        ended_s = _seconds(sub, "t")
        started_s = max(0.0, ended_s - _seconds(sub, "dur_ms") / 1000)
        after = () if self._main is None else (self._main,)
        last = self._add(calls[0], node, None, None, after, self._until(started_s))
        for before, call in pairwise(calls):
            last = self._add(call, node, before, last, (last,), self._gap(call, before))
        return _Branch(last, ended_s)

    def _add(
        self,
        call: Fields,
        node: str,
        before: Fields | None,
        previous: int | None,
        after: Sequence[int],
        gap_s: float,
    ) -> int:
        return self.replay.call(
            node,
            call.tokens("in"),
            call.tokens("out"),
            after=after,
            extends=previous if before is None or self._extends(call, before) else None,
            gap_s=gap_s,
            human=before is not None and before.text("stop", "") == "end_turn",
        )

    def _extends(self, call: Fields, before: Fields) -> bool:
        blocks, hit = before.number("blk"), call.number("hit_blk")
        kept = blocks is None or hit is None or hit >= _KEPT * blocks
        if kept and call.tokens("in") >= before.tokens("in"):
            return True
        self._notes[REWRITTEN] += 1
        return False

    def _gap(self, call: Fields, before: Fields | None) -> float:
        gap_s = call.number("gap")
        if gap_s is None and before is not None:
            self._notes[UNKNOWN_GAP] += 1
        elif before is not None and before.text("stop", "") not in ("tool_use", "end_turn"):
            self._notes[UNKNOWN_STOP] += 1
        return gap_s or 0.0

    def _until(self, started_s: float) -> float:
        """Seconds from the end of the agent's last call, where that is known."""
        if self._before is None:
            return started_s
        took_s = self._before.number("api")
        if took_s is None:
            self._notes[UNKNOWN_GAP] += 1
            return 0.0
        return max(0.0, started_s - _seconds(self._before, "t") - took_s)

    def _joined(self, now_s: float) -> list[_Branch]:
        """The subagents since the last call that have ended by ``now_s``; the rest detach."""
        joined = [one for one in self._branches if one.ended_s <= now_s + _WHOLE_SECONDS]
        if len(joined) < len(self._branches):
            self._notes[DETACHED] += len(self._branches) - len(joined)
        self._branches = []
        return joined


def _seconds(entry: Fields, name: str) -> float:
    value = entry.number(name)
    if value is None:
        raise entry.complain(f"{name!r} is missing")
    return value
