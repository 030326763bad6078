"""Files in each format become the programs that they record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentrt.graph import ExecutionDAG, NodeKind, NodeState, write
from agentrt.lab.workloads import dagfile, replay, sessions
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.lab.workloads.traces import Trace, read_programs
from agentrt.request import CallReport


def call(t: float, tokens: int, out: int, gap: float | None, **more: Any) -> dict[str, Any]:
    return {"t": t, "in": tokens, "out": out, "stop": "tool_use", "gap": gap, "api": 2.0, **more}


def session(*calls: dict[str, Any], name: str = "s1") -> dict[str, Any]:
    return {"id": name, "models": ["m"], "tool_tokens": 50, "system_tokens": 30, "calls": [*calls]}


def lines(path: Path, *objects: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")
    return path


def only(trace: Trace) -> ProgramShape:
    (program,) = trace.programs
    return program


class TestSessions:
    CHAIN = session(
        call(0, 100, 10, 0.0, blk=2, hit_blk=0),
        call(5, 150, 20, 3.0, blk=3, hit_blk=2, stop="end_turn"),
        call(67, 250, 5, 60.0, blk=4, hit_blk=3),
    )

    def test_calls_make_a_chain(self, tmp_path: Path) -> None:
        trace = read_programs(lines(tmp_path / "agents.jsonl", self.CHAIN))
        program = only(trace)
        assert (program.program_id, program.type, program.system_tokens) == ("s1", "agents", 80)
        assert [c.prompt_tokens for c in program.calls] == [100, 150, 250]
        assert [c.output_tokens for c in program.calls] == [10, 20, 5]
        assert [c.after for c in program.calls] == [(), (0,), (1,)]
        assert [c.extends for c in program.calls] == [None, 0, 1]
        assert [c.gap_s for c in program.calls] == [0.0, 3.0, 60.0]
        assert [c.human for c in program.calls] == [False, False, True]
        assert (trace.format, trace.notes) == ("sessions", {})

    def test_a_session_arrives_at_its_start(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", {**self.CHAIN, "start": 7.5}, {**self.CHAIN, "id": "s2"})
        assert [p.arrives_s for p in read_programs(path).programs] == [7.5, 0.0]

    def test_gzipped_or_one_document_is_the_same(self, tmp_path: Path) -> None:
        plain = read_programs(lines(tmp_path / "a.jsonl", self.CHAIN))
        packed = tmp_path / "a.jsonl.gz"
        packed.write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
        array = tmp_path / "a.json"
        array.write_text(json.dumps([self.CHAIN], indent=1))
        assert read_programs(packed).programs == plain.programs
        assert read_programs(array).programs == plain.programs

    def test_scales_are_applied_and_reported(self, tmp_path: Path) -> None:
        path = lines(tmp_path / "a.jsonl", self.CHAIN)
        trace = read_programs(path, scales=Scales(0.5, 0.5, 0.1))
        program = only(trace)
        assert [c.prompt_tokens for c in program.calls] == [50, 75, 125]
        assert [c.output_tokens for c in program.calls] == [5, 10, 2]
        assert [c.gap_s for c in program.calls] == pytest.approx([0.0, 0.3, 6.0])
        assert program.system_tokens == 40
        assert "contexts x 0.5, outputs x 0.5, gaps x 0.1" in trace.report()

    def test_a_prompt_keeps_room_for_the_output_it_holds(self, tmp_path: Path) -> None:
        trace = read_programs(lines(tmp_path / "a.jsonl", self.CHAIN), scales=Scales(0.1))
        assert [c.prompt_tokens for c in only(trace).calls] == [10, 20, 40]
        assert trace.notes == {replay.RAISED: 2}
        assert f"{replay.RAISED}: 2" in trace.report()

    def test_without_gaps_nothing_waits_outside(self, tmp_path: Path) -> None:
        trace = read_programs(lines(tmp_path / "a.jsonl", self.CHAIN), scales=Scales(gap=0))
        assert not any(c.gap_s or c.human for c in only(trace).calls)

    def test_subagents_are_parallel_branches_that_the_next_call_joins(self, tmp_path: Path) -> None:
        """1. A call ends at 2 s; two subagents begin at 3 s and end at 13 s and 23 s.
        2. The next call begins at 25 s: 2 s after the later one, whatever its own gap says.
        """
        inner = [call(0, 40, 4, 0.0), call(6, 60, 4, 4.0)]
        subs = [
            {"sub": f"a{i}", "kind": "Explore", "t": end, "dur_ms": 1000 * (end - 3), "calls": kept}
            for i, (end, kept) in enumerate([(13.0, inner), (23.0, inner[:1])])
        ]
        both = session(call(0, 100, 10, 0.0), *subs, call(25, 150, 10, 23.0))
        program = only(read_programs(lines(tmp_path / "a.jsonl", both)))
        assert [c.node for c in program.calls] == ["main", *["explore"] * 3, "main"]
        assert [c.after for c in program.calls] == [(), (0,), (1,), (0,), (0, 2, 3)]
        assert [c.extends for c in program.calls] == [None, None, 1, None, 0]
        assert [c.gap_s for c in program.calls] == pytest.approx([0, 1, 4, 1, 2])
        assert program.system_tokens == 40  # no longer than a prompt that begins with it

    def test_a_subagent_in_the_background_is_not_waited_for(self, tmp_path: Path) -> None:
        sub = {"sub": "a", "t": 90.0, "dur_ms": 88000, "calls": [call(0, 40, 4, 0.0)]}
        both = session(call(0, 100, 10, 0.0), sub, call(5, 150, 10, 3.0))
        trace = read_programs(lines(tmp_path / "a.jsonl", both))
        assert only(trace).calls[2].after == (0,)
        assert only(trace).calls[2].gap_s == 3.0
        assert trace.notes == {sessions.DETACHED: 1}

    def test_nothing_is_left_out_or_guessed_in_silence(self, tmp_path: Path) -> None:
        odd = session(
            call(0, 100, 0, 0.0, blk=2, hit_blk=0, stop=""),
            call(5, 150, 20, 3.0, blk=3, hit_blk=1),
            {"sub": "a", "t": 6.0, "dur_ms": 1000, "calls": []},
            call(9, 200, 20, None, blk=3, hit_blk=3),
        )
        empty = session(name="s2")
        trace = read_programs(lines(tmp_path / "a.jsonl", odd, empty))
        assert trace.notes == {
            replay.NO_OUTPUT: 1,
            sessions.UNKNOWN_STOP: 1,
            replay.REWRITTEN: 1,
            sessions.NO_CALLS: 2,
            sessions.UNKNOWN_GAP: 1,
        }
        assert only(trace).calls[0].output_tokens == 1
        assert only(trace).calls[1].extends is None


def report(prompt: int, output: int, cached: int = 0) -> CallReport:
    return CallReport(prompt_tokens=prompt, output_tokens=output, cached_tokens=cached)


def recorded(program_id: str, at: float = 100.0) -> ExecutionDAG:
    """A plan; a tool, then a call on its result, and beside them a call that fails; a human."""
    dag = ExecutionDAG(program_id, "trip")
    dag.add(NodeKind.CALL, "qwen", "main/plan", (), at)
    dag.finish(0, at + 2, report(100, 20))
    dag.add(NodeKind.TOOL, "search", "main", (0,), at + 2)
    dag.add(NodeKind.CALL, "qwen", "main", (0,), at + 2)
    dag.fail(2, at + 3, "refused")
    dag.finish(1, at + 5, None)
    dag.add(NodeKind.CALL, "qwen", "main/act", (1, 2), at + 5.5)
    dag.finish(3, at + 8, report(160, 30, cached=96))
    dag.add(NodeKind.HUMAN, "ask", "main", (3,), at + 8)
    dag.finish(4, at + 20, None)
    dag.add(NodeKind.CALL, "qwen", "", (4,), at + 20)
    dag.finish(5, at + 21, report(50, 5))
    dag.close(at + 21, NodeState.DONE)
    return dag


class TestDags:
    def test_interrupts_become_gaps(self, tmp_path: Path) -> None:
        path = tmp_path / "dag.json"
        write(recorded("p1"), path)
        trace = read_programs(path)
        program = only(trace)
        assert (trace.format, program.program_id, program.type) == ("dags", "p1", "trip")
        assert [c.node for c in program.calls] == ["plan", "act", "qwen"]
        assert [c.after for c in program.calls] == [(), (0,), (1,)]
        assert [c.gap_s for c in program.calls] == pytest.approx([0.0, 3.5, 12.0])
        assert [c.human for c in program.calls] == [False, False, True]
        assert [c.extends for c in program.calls] == [None, 0, None]
        assert trace.notes == {dagfile.NO_OUTPUT: 1}

    def test_several_programs_arrive_as_they_did(self, tmp_path: Path) -> None:
        path = tmp_path / "dags.json"
        dead = ExecutionDAG("p3", "trip")
        write([recorded("p1", at=100.0), recorded("p2", at=107.5), dead], path)
        trace = read_programs(path, scales=Scales(output=0.1))
        assert [p.arrives_s for p in trace.programs] == [0.0, 7.5]
        assert [c.output_tokens for c in trace.programs[1].calls] == [2, 3, 1]
        assert trace.notes[dagfile.NO_CALLS] == 1
