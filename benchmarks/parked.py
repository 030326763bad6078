"""``benchmarks parked``: the cost of programs that wait for a human, and are parked while they
wait.

The engine is scripted, and there is no HTTP. Programs ask questions, and are parked in batches.
Then the server starts again, and all questions are answered in random order.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from agentrt import Context, Runtime, program
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.lab.commands.options import (
    note,
    programs_option,
    seed_option,
)
from agentrt.runtime.run import Run
from agentrt.serving.programs.api import go_on
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.parked import Parking
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.questions.server_questions import QuestionFilter, Viewer
from agentrt.serving.server import ServedProgram, Server
from benchmarks.harness import WHOLE, Column, Figures, Results, run_with_table
from benchmarks.options import json_option
from tests.doubles.scripted import ScriptedExecutor

BATCH = 500
"""The number of programs that are started, or answered, together."""
LISTED = 100
"""The number of questions that are listed, if there are as many."""
COLUMNS = (
    Column("operations", "operations", WHOLE),
    Column("seconds", "seconds", "{:.1f}"),
    Column("CPU, ms each", "cpu_ms", "{:.2f}"),
    Column("most runs in memory", "most_runs", WHOLE),
    Column("runs in memory at the end", "runs", WHOLE),
    Column("RSS, MiB", "rss_mib", WHOLE),
    Column("wrong results", "wrong", WHOLE),
    Column("journal, MiB", "journal_mib", WHOLE),
)


@program
async def asks(ctx: Context, number: int) -> str:
    """Ask the model, then a human."""
    return f"{await ctx.llm(f'about {number}')} {await ctx.human(f'{number}?')}"


@click.command()
@programs_option(default=10_000)
@seed_option
@json_option
def parked(programs: int, seed: int, as_json: bool) -> None:
    """Measure the memory, the CPU time and the disk space of programs that wait for humans."""
    measured = Results({"phase": "phase"})

    async def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            await measure(measured, path, programs, random.Random(seed))

    run_with_table(work(), measured, COLUMNS, as_json=as_json)


async def measure(measured: Results, path: Path, programs: int, rng: random.Random) -> None:
    """Park programs, start the server again, list their questions, and answer all of them."""
    async with opened(path) as local:
        note(f"parking {programs} programs")
        measured.add("begun and parked", figures=await local.timed(local.park(programs)))
    async with opened(path) as local:
        measured.add("a server's start", figures=await local.timed(local.started()))
        shown = min(programs, LISTED)
        listed = await local.timed(local.listed(shown))
        measured.add(f"{shown} questions listed", figures=listed)
        note("answering all questions")
        measured.add("answered after the start", figures=await local.timed(local.answered(rng)))


@dataclass(slots=True)
class Local:
    """A server without HTTP."""

    runs: ProgramRuns
    parking: Parking
    server: Server
    engine: ScriptedExecutor
    journal: Journal
    path: Path
    most: int = 0
    wrong: int = 0

    async def timed(self, work: Any) -> Figures:
        """Await ``work``, which returns a number of operations: the number of parked or answered
        programs, or 1. Return the figures of the work, with the CPU time for each operation.
        """
        self.most = self.wrong = 0
        cpu, began = time.process_time(), time.monotonic()
        count = await work
        cpu_ms = (time.process_time() - cpu) * 1000 / count
        seconds = time.monotonic() - began
        return {
            "operations": count,
            "seconds": seconds,
            "cpu_ms": cpu_ms,
            "most_runs": self.most,
            "runs": runs_in_memory(),
            "rss_mib": rss_mib(),
            "wrong": self.wrong,
            "journal_mib": sum(file.stat().st_size for file in self.path.parent.iterdir()) / 2**20,
        }

    async def started(self) -> int:
        """Read the journal as a server does at its start. The parked programs must stay parked."""
        await go_on(self.server, self.runs)
        assert not self.server.runtime.runs
        await self.parking.sweep()
        return 1

    async def park(self, count: int) -> int:
        """Start programs, and park them."""
        live = self.server.runtime.runs
        for first in range(0, count, BATCH):
            for number in range(first, min(first + BATCH, count)):
                self.runs.start(
                    asks, "default", RunRequest(input=number, wait=False, deadline=None)
                )
            while live:
                self.most = max(self.most, len(live))
                await self.parking.sweep()
                await asyncio.sleep(0.001)
            self.forget()
        return count

    async def listed(self, count: int) -> int:
        """List the first ``count`` questions."""
        questions = await self.server.questions.open(Viewer(), QuestionFilter(limit=count))
        assert len(questions) == count
        return 1

    async def answered(self, rng: random.Random) -> int:
        """Answer all questions in random order, in batches."""
        query = "SELECT question, program FROM agentrt_waits WHERE question IS NOT NULL"
        questions = await self.journal.query(query)
        rng.shuffle(questions)
        for first in range(0, len(questions), BATCH):
            await self._answered(questions[first : first + BATCH])
            self.forget()
        return len(questions)

    async def _answered(self, questions: Sequence[Any]) -> None:
        async def answer(question: str, run: str) -> None:
            number = int(run.rpartition("-")[2]) - 1
            await self.server.questions.answer(Viewer(), question, f"yes {number}")
            live = self.runs.live(run)
            assert live is not None
            self.most = max(self.most, len(self.server.runtime.runs))
            self.wrong += await live.run.wait() != f"said about {number} yes {number}"

        await asyncio.gather(*(answer(*row) for row in questions))

    def forget(self) -> None:
        """Drop the records that the engine keeps for tests, and the runs that have ended."""
        self.engine.calls.clear()
        self.engine.ended.clear()
        self.engine.totals.clear()
        self.runs.sweep()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Local]:
    """Open a server, with the journal at ``path``, during the ``with`` block."""
    engine = ScriptedExecutor(lambda call: f"said {call.spec.messages[-1]['content']}")
    async with (
        await Journal.open(lambda: SQLiteStore(path)) as journal,
        Runtime(engine, ask_human=None, journal=journal) as runtime,
    ):
        server = Server(
            runtime, ("scripted",), {"asks": ServedProgram(asks, __file__)}, park_s=1e-6
        )
        runs = ProgramRuns(server)
        parking = Parking(server, runs, journal)
        parking.open_source()
        yield Local(runs, parking, server, engine, journal, path)
        parking.close()
        await runs.close()


def runs_in_memory() -> int:
    """Return the number of runs in memory that have not ended."""
    gc.collect()
    runs = [item for item in gc.get_objects() if isinstance(item, Run)]
    return sum(run.ended_at is None for run in runs)


def rss_mib() -> float:
    """Return the resident memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20
