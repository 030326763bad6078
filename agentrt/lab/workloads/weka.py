"""Claude Code sessions as Weka recorded them, by the rules under which AgentX replays them.

A file is a session: ``id``, ``block_size`` and ``requests``, each with ``t``, ``in``, ``out``,
``hash_ids``, ``stop``, ``api_time`` and ``think_time``; one of ``type`` ``subagent`` has
``requests`` of its own, whose ``t`` counts from its begin (callanjfox/kv-cache-tester,
docs/trace_replay_tester.md; ``aiperf``, dataset/loader/weka_trace_models.py). They are read as
`agentrt.lab.workloads.sessions` are.

The rules are those of ``aiperf``'s scenario ``inferencex-agentx-mvp``: outputs have the lengths
that were recorded, sessions share no beginning, and nothing stands still for more than `IDLE_S`.
AgentX cuts the time in which no session at all has a call; here each gap is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from pydantic import Field

from agentrt.lab.workloads import sessions
from agentrt.lab.workloads.fields import Fields, Notes, Number, Record, Tokens
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape

IDLE_S = 10.0
CUT = f"gaps of more than {IDLE_S:g} s, cut to that"


class _Head(Record):
    id: str


class _Request(Record):
    t: Number
    out: Tokens
    hash_ids: list[int] = Field(default_factory=list)
    stop: str = ""
    api_time: Number | None = None
    think_time: Number | None = None


class _Subagent(Record):
    t: Number
    duration_ms: Number
    agent_id: str = ""
    subagent_type: str = "subagent"


def read(entries: Sequence[Fields], type: str, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """One program per session, all of this type."""
    found: list[Fields] = []
    for entry in entries:
        with notes.leaving_out(sessions.UNREADABLE):
            found.append(Fields(entry.where, {"id": entry.read(_Head).id, "calls": _calls(entry)}))
    longest_s = IDLE_S * scales.gap
    return [
        replace(one, calls=tuple(_cut(call, longest_s, notes) for call in one.calls))
        for one in sessions.read(found, type, scales, notes, exact=True)
    ]


def _calls(entry: Fields) -> list[dict[str, Any]]:
    """A session's, or a subagent's: what was kept of a prompt is counted in blocks."""
    calls: list[dict[str, Any]] = []
    before: list[int] = []
    for one in entry.inside("requests"):
        if one.values.get("type") == "subagent":
            sub = one.read(_Subagent)
            about = {"sub": sub.agent_id, "kind": sub.subagent_type, "dur_ms": sub.duration_ms}
            calls.append({**about, "t": sub.t, "calls": _calls(one)})
            continue
        request = one.read(_Request)
        pairs = zip(before, request.hash_ids, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        before = request.hash_ids
        calls.append(
            {
                "t": request.t,
                "in": one.values.get("in"),
                "out": request.out,
                "blk": len(before),
                "hit_blk": kept,
                "stop": request.stop,
                "gap": request.think_time,
                "api": request.api_time,
            }
        )
    return calls


def _cut(call: CallShape, longest_s: float, notes: Notes) -> CallShape:
    if call.gap_s <= longest_s:
        return call
    notes[CUT] += 1
    return replace(call, gap_s=longest_s)
