"""Claude Code sessions as Weka recorded them, by the rules under which AgentX replays them.

A file is a session: ``id``, ``tool_tokens``, ``system_tokens`` and ``requests``, each with ``t``,
``in``, ``out``, ``hash_ids``, ``stop``, ``api_time`` and ``think_time``; one of ``type``
``subagent`` has ``requests`` of its own (callanjfox/kv-cache-tester, docs/trace_replay_tester.md;
``aiperf``, dataset/loader/weka_trace_models.py). They are read as `agentrt.lab.workloads.sessions`.

The rules are those of ``aiperf``'s scenario ``inferencex-agentx-mvp``: prompts and outputs have the
lengths that were recorded, sessions share no beginning, and nothing stands still for more than
`IDLE_S`. AgentX cuts the time in which no session at all has a call; here each gap is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentrt.lab.workloads import sessions
from agentrt.lab.workloads.fields import Fields, Notes
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import CallShape, ProgramShape

IDLE_S = 10.0
CUT = f"gaps of more than {IDLE_S:g} s, cut to that"


def read(entries: Sequence[Fields], type: str, scales: Scales, notes: Notes) -> list[ProgramShape]:
    """One program per session, all of this type."""
    longest_s = IDLE_S * scales.gap

    def cut(call: CallShape) -> CallShape:
        notes.update([CUT] * (call.gap_s > longest_s))
        return replace(call, gap_s=min(call.gap_s, longest_s))

    return [
        replace(one, calls=tuple(map(cut, one.calls)))
        for one in sessions.read(entries, type, scales, notes, exact=True)
    ]
