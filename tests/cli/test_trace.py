"""`run --trace` and `journal trace`: what a timeline shows is what the report counts."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, program, tool
from agentrt.cli.perfetto import write as write_trace
from agentrt.cli.timeline import Timeline, of_run
from agentrt.executors.base import Chunk, Executor
from agentrt.interrupts.questions import Question
from agentrt.journal.schema import RecordedProgram
from agentrt.journal.store import SQLiteStore
from agentrt.request import Call, CallReport, Reply
from agentrt.runtime.run import Run as ProgramRun
from tests.cli.conftest import Invoke, Refused, Run, Write
from tests.cli.trace_processor import TraceProcessor
from tests.journal.made import Made

SOURCE = """
import asyncio
from agentrt import node, tool

@tool(idempotent=True)
def look(item: str) -> str:
    return item.upper()

@node
async def branch(ctx, name):
    return await ctx.tool(look, item=str(await ctx.llm(f"branch {name}")))

@program
async def main(ctx):
    found = await asyncio.gather(*(branch(ctx, name) for name in "abc"))
    answer = await ctx.human("go on?")
    await ctx.sleep(0.0)
    return [*found, answer, str(await ctx.llm("last"))]
"""


class Ticking(Executor):
    """Each call takes eight steps, some of them in the queue, and was preempted once."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.steps = 0

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        since, first = self.now, self.steps + 1
        for _ in range(8):
            self.now += 0.125
            self.steps += 1
            await asyncio.sleep(0)
        each = (self.now - since) / 8
        by = [["other-1", 0, 0.5]]
        spans = [
            ["queued", each, 1, 0.25, 0, by],
            ["prefill", 2 * each, 1, 0.25, 30, []],
            ["preempted", each, 1, 0.25, 0, by],
            ["decode", 4 * each, 2, 0.25, 4, []],
        ]
        report = CallReport(
            service_s=6 * each,
            waiting_s=2 * each,
            steps=8,
            arrived_step=first,
            finished_step=self.steps,
            prompt_tokens=30,
            output_tokens=4,
            preemptions=1,
            spans=spans,
        )
        yield Chunk("tea", Reply("tea", report=report))


@pytest.fixture
async def runs() -> list[ProgramRun]:
    """Two programs of all kinds of nodes, on a clock that only the engine moves."""

    @tool
    def look(item: str) -> str:
        return item

    @program
    async def tea(ctx: Context) -> None:
        async def branch(name: str) -> None:
            await ctx.tool(look, item=str(await ctx.llm(name)))
            await ctx.llm(f"{name} again")

        await asyncio.gather(*(branch(name) for name in "abc"))
        await ctx.human("more?")

    async def answer(question: Question) -> str:
        return "no"

    engine = Ticking()
    async with Runtime(engine, ask_human=answer, clock=lambda: engine.now) as runtime:
        started = [runtime.start(tea) for _ in range(2)]
        for one in started:
            await one.wait()
    return started


@pytest.fixture
def timelines(runs: list[ProgramRun]) -> list[Timeline]:
    return [of_run(run) for run in runs]


async def test_what_a_timeline_shows_is_what_the_report_counts(
    runs: list[ProgramRun], timelines: list[Timeline]
) -> None:
    for run, line in zip(runs, timelines, strict=True):
        report = run.report(0.0)
        kinds = Counter(node.kind for node in line.nodes)
        assert kinds == {"call": report.calls, "tool": 3, "human": 1}
        parts = [part for node in line.nodes for part in node.inner]
        waited = sum(p.until - p.since for p in parts if p.kind in ("queued", "preempted"))
        served = sum(p.until - p.since for p in parts if p.kind in ("prefill", "decode"))
        assert (waited, served) == pytest.approx((report.waiting_s, report.service_s))
        assert sum(part.kind == "preempted" for part in parts) == report.preemptions
        assert line.lives[0].until - line.lives[0].since == pytest.approx(report.wall_s)


async def test_slices_of_a_track_are_inside_each_other_or_apart(
    timelines: list[Timeline], tmp_path: Path
) -> None:
    write_trace(timelines, tmp_path / "t.json")
    tracks: dict[Any, list[tuple[float, float]]] = {}
    for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"]:
        if event["ph"] == "X":
            ends = event["ts"] + event["dur"]
            tracks.setdefault(event["tid"], []).append((event["ts"], ends))
    assert len(tracks) > len(timelines) * 3  # branches beside each other have their own
    for slices in tracks.values():
        around: list[float] = []
        for since, until in slices:
            while around and around[-1] <= since:
                around.pop()
            assert not around or until <= around[-1]
            around.append(until)


async def test_sql_over_a_trace_counts_what_the_report_counts(
    runs: list[ProgramRun], timelines: list[Timeline], tmp_path: Path
) -> None:
    write_trace(timelines, tmp_path / "t.json")
    with TraceProcessor(tmp_path / "t.json") as trace:
        assert trace.query("SELECT name, value FROM stats WHERE severity = 'error' AND value") == []
        found = trace.query(
            "SELECT p.name, s.category, COUNT(*), SUM(s.dur) FROM slice s "
            "JOIN thread_track t ON s.track_id = t.id JOIN thread USING (utid) "
            "JOIN process p USING (upid) GROUP BY 1, 2"
        )
        by_program = {(name, kind): (count, ns / 1e9) for name, kind, count, ns in found}
        for run in runs:
            report = run.report(0.0)
            count, seconds = by_program[run.id, "program"]
            assert (count, seconds) == (1, pytest.approx(report.wall_s))
            assert by_program[run.id, "call"][0] == report.calls
            assert by_program[run.id, "tool"][0] == 3
            assert by_program[run.id, "human"][0] == 1
            assert by_program[run.id, "preempted"][0] == report.preemptions
            waited = by_program[run.id, "queued"][1] + by_program[run.id, "preempted"][1]
            assert waited == pytest.approx(report.waiting_s)
        tokens = "SELECT SUM(EXTRACT_ARG(arg_set_id, 'args.output_tokens')) FROM slice "
        outputs = sum(run.report(0.0).output_tokens for run in runs)
        assert trace.query(f"{tokens} WHERE category = 'call'") == [(outputs,)]
        (last,) = trace.query(
            "SELECT MAX(value) FROM counter JOIN counter_track t ON track_id = t.id "
            "WHERE t.name LIKE 'step%'"
        )
        assert last == (max(run.last_step for run in runs),)
        arrows = sum(event.get("ph") == "s" for event in _events(tmp_path / "t.json"))
        assert trace.query("SELECT COUNT(*) FROM flow") == [(arrows,)]


def _events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


def _slices(path: Path) -> Counter[tuple[str, str]]:
    return Counter((one["cat"], one["name"]) for one in _events(path) if one["ph"] == "X")


def test_a_command_and_its_journal_show_the_same_nodes(
    run_program: Run, invoke: Invoke, tmp_path: Path
) -> None:
    paths = {name: tmp_path / name for name in ("j", "a.json", "b.json", "c.json")}
    given = ["--human", "yes", "--n", 2, "--journal", paths["j"], "--trace", paths["a.json"]]
    assert run_program(SOURCE, *given).code == 0
    assert invoke("journal", "trace", paths["j"], paths["b.json"]) == 0
    assert invoke("journal", "trace", paths["j"], paths["c.json"], "--run", "main-2") == 0
    run, kept, one = (_slices(paths[name]) for name in ("a.json", "b.json", "c.json"))
    assert run[("call", "llm")] == kept[("call", "llm")] == 8
    assert run[("tool", "look")] == kept[("tool", "look")] == 6
    assert run[("human", "go on?")] == kept[("human", "human")] == 2
    assert run[("program", "main")] == kept[("program", "main")] == 2
    assert (one[("program", "main")], one[("call", "llm")]) == (1, 4)


def test_a_program_that_is_about_to_begin(
    invoke: Invoke, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A journal that is being written has its row, and no node of it yet."""
    made = Made(1.0).node("0#0", "tool", 0.0, 1.0)
    there, out = made.write(tmp_path / "j"), tmp_path / "t.json"
    with closing(SQLiteStore(there)) as store:
        (row,) = store.query("SELECT * FROM agentrt_programs")
        store.write([RecordedProgram("p-2", *row[1:])])
    assert invoke("journal", "trace", there, out) == 0
    assert "t.json: 1 run, 1 node; open it at" in capfd.readouterr().err
    assert _slices(out) == Counter({("program", "p"): 1, ("tool", "tool"): 1})


def test_what_cannot_be_is_refused(
    refused: Refused, invoke: Invoke, write: Write, tmp_path: Path
) -> None:
    there, out = tmp_path / "j", tmp_path / "t.json"
    refused("journal", "trace", there, out, says=["does not exist"])
    assert invoke("run", write(SOURCE), "--human", "yes", "--journal", there) == 0
    refused("journal", "trace", there, out, "--run", "main-9", says=["main-9"])
    refused("journal", "trace", there, tmp_path / "none" / "t.json", says=["OUT", "does not exist"])
    refused("journal", "trace", there, there, says=["is a database"])
    refused("run", "x.py", "--trace", there, says=["is a database"])
    refused("run", "x.py", "--trace", tmp_path, says=["--trace", "folder"])
