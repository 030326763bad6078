"""The clock of a journal: what its rows have, what a later process continues from, and what people
see.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agentrt import Context, Runtime
from agentrt.journal import Journal
from agentrt.journal.analysis import forking
from agentrt.journal.analysis.reading import ReadingStore, history, listed
from agentrt.journal.analysis.rendering import program_json
from agentrt.journal.analysis.wall import read_program
from agentrt.journal.analysis.why import why_json
from agentrt.journal.postgres import PostgresStore
from agentrt.journal.store import SQLiteStore, Store, clock_of, shift_of
from agentrt.runtime.durable import Durable
from agentrt.steady import (
    ClockReading,
    MachineClocks,
    SteadyClock,
    name_of_boot,
    seconds_since_boot,
)
from tests.doubles.machine import NOON, Machine
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.killing import QuickStore, program_of
from tests.serving.langgraph.postgres import cluster

HOUR_S = 3600.0


async def naps(ctx: Context) -> str:
    await ctx.sleep(10.0)
    await ctx.sleep(20.0)
    return "awake"


async def recorded(machine: Machine, path: Path, set_by: float) -> str:
    """The id of a program that naps, between whose naps the clock is set."""
    async with (
        await Journal.open(lambda: QuickStore(path), machine=machine.clocks()) as journal,
        Runtime(ScriptedExecutor(), journal=journal) as runtime,
    ):
        run = runtime.start(program_of(naps), durable=Durable())
        for seconds in (10.0, 20.0):
            while run.record is None or not run.record.rests:
                await asyncio.sleep(0)
            [rest] = run.record.rests.values()
            machine.is_set(set_by)
            machine.passes(seconds)
            while rest in run.record.rests.values():
                await asyncio.sleep(0)
        await run.wait()
        assert run.error is None
        return run.id


@pytest.mark.parametrize("by", [0.0, HOUR_S, -HOUR_S])
async def test_people_see_times_of_day_and_what_passed(by: float, tmp_path: Path) -> None:
    """A program ended now by the clock on the wall, and took as long as it took, in all that shows
    it: the list, its nodes, why it took so long, and SQL.
    """
    machine, path = Machine(), tmp_path / "j"
    program = await recorded(machine, path, by)
    ended = NOON + 2 * by + 30.0
    assert machine.time_of_day == ended
    with closing(ReadingStore(path)) as store:
        [row] = listed(store, limit=9)
        assert (row.started, row.ended) == (ended - 30.0, ended)
        shown = program_json(history(store, program))
        assert (shown["started"], shown["ended"], shown["wall_s"]) == (ended - 30.0, ended, 30.0)
        naps = [node.start.started for node in history(store, program).nodes.values()]
        assert naps == [ended - 30.0, ended - 20.0]
        why = read_program(store, program)
        told = why_json(why, why.pieces(), [])
        assert (told["started"], told["wall_s"]) == (ended - 30.0, 30.0)
        assert [one["seconds"] for one in told["reasons"]] == [30.0]
        nodes = "SELECT started, ended FROM agentrt_nodes WHERE kind = 'sleep' ORDER BY node"
        assert store.query(nodes) == [(ended - 30.0, ended - 20.0), (ended - 20.0, ended)]


async def test_a_fork_has_the_times_of_day_of_its_program(tmp_path: Path) -> None:
    """In another journal, whose clock was set by as much the other way."""
    machine = Machine()
    program = await recorded(machine, tmp_path / "old", HOUR_S)
    await recorded(Machine(), tmp_path / "new", -HOUR_S)
    with closing(ReadingStore(tmp_path / "old")) as store:
        old = history(store, program)
    last = list(old.nodes)[-1]
    with closing(QuickStore(tmp_path / "new")) as store:
        row = forking.fork_in(store, old, last, {}, old.program.input, {})
        [kept] = history(store, row.id).nodes.values()
        [raw] = store.query("SELECT started FROM agentrt_starts WHERE program = ?", (row.id,))
    assert kept.start.started == old.nodes[kept.start.node].start.started
    assert raw == (kept.start.started + 2 * HOUR_S,)


async def test_that_the_clock_was_set_is_kept_though_nothing_else_is_written(
    tmp_path: Path,
) -> None:
    """A process that is killed later, and another boot, find it."""
    machine, path = Machine(), tmp_path / "j"
    journal = await Journal.open(lambda: SQLiteStore(path), machine=machine.clocks())
    for by in (HOUR_S, -2 * HOUR_S):
        machine.is_set(by)
        async with asyncio.timeout(60):
            while True:
                with closing(ReadingStore(path)) as store:
                    if shift_of(store) == machine.time_of_day - NOON:
                        break
                await asyncio.sleep(0)
    machine.boots(100.0)
    with closing(ReadingStore(path)) as store:
        assert clock_of(store, machine.clocks()).now() == NOON + 100.0
    await journal.close()


async def test_a_clock_that_is_not_set_is_kept_every_ten_minutes(tmp_path: Path) -> None:
    """It costs no more writes than that."""
    machine, path = Machine(), tmp_path / "j"

    async def kept() -> ClockReading:
        await machine.looked()
        with closing(ReadingStore(path)) as store:
            [[text]] = store.query("SELECT value FROM agentrt_journal WHERE key = 'clock'")
            return ClockReading(*json.loads(text))

    async with await Journal.open(lambda: SQLiteStore(path), machine=machine.clocks()):
        machine.passes(590.0)
        machine.is_set(0.001)
        assert await kept() == ("boot 1", 500.0, NOON, 0.0)
        machine.passes(20.0)
        async with asyncio.timeout(60):
            while await kept() != ("boot 1", 1110.0, NOON + 610.0, 0.0):
                pass


async def test_a_journal_of_an_older_version_goes_on_by_the_time_of_day(tmp_path: Path) -> None:
    machine, path = Machine(), tmp_path / "j"
    program = await recorded(machine, path, 0.0)
    with closing(sqlite3.connect(path)) as writer, writer:
        writer.execute("DELETE FROM agentrt_journal WHERE key IN ('clock', 'shift')")
    machine.boots(HOUR_S)
    with closing(ReadingStore(path)) as store:
        assert history(store, program).ended == NOON + 30.0
    async with await Journal.open(lambda: QuickStore(path), machine=machine.clocks()) as journal:
        assert journal.clock.now() == machine.time_of_day


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with cluster() as url:
        yield url


async def test_on_postgresql(url: str) -> None:
    machine = Machine()

    def opened() -> Store:
        return PostgresStore(url, "postgresql://here", {})

    async with await Journal.open(opened, machine=machine.clocks()):
        machine.is_set(HOUR_S)
        await machine.looked()
    machine.passes(100.0)
    machine.is_set(HOUR_S)
    async with await Journal.open(opened, machine=machine.clocks()) as journal:
        assert journal.clock.now() == NOON + 100.0
        shift = "SELECT CAST(value AS DOUBLE PRECISION) FROM agentrt_journal WHERE key = 'shift'"
        assert await journal.query(shift) == [(2 * HOUR_S,)]
        assert await journal.query("SELECT started, ended FROM agentrt_nodes") == []


# -- the clock by itself ---------------------------------------------------------------------------


def test_it_never_goes_backwards() -> None:
    """Whatever happens to the machine, in whatever order; and without a reading it is the time."""
    machine = Machine()
    clock, last = SteadyClock(machine.clocks()), 0.0
    assert clock.now() == NOON
    for number in range(200):
        step = number * 7919 % 5
        if step == 0:
            machine.is_set(-HOUR_S * (number % 3))
        elif step == 1:
            machine.is_set(HOUR_S * (number % 7))
        elif step == 2:
            reading = clock.reading()
            machine.boots(10.0)
            clock = SteadyClock(machine.clocks(), reading)
        elif step == 3:
            clock = SteadyClock(machine.clocks(), clock.reading())
        machine.passes(1.0)
        clock.look()
        assert clock.now() >= last + 1.0
        assert clock.time_of_day(clock.now()) == pytest.approx(machine.time_of_day)
        last = clock.now()


def test_a_boot_without_a_name_is_another_one() -> None:
    """So is one that has been up for less long: a copy of a machine continues from its past."""
    for boot, up in (("", 900.0), ("a", 100.0)):
        machine = MachineClocks(lambda: NOON + 50.0, lambda up=up: up, boot)  # type: ignore[misc]
        assert SteadyClock(machine, ClockReading(boot, 500.0, NOON, 0.0)).now() == NOON + 50.0
    machine = MachineClocks(lambda: NOON + 50.0, lambda: 600.0, "a")
    assert SteadyClock(machine, ClockReading("a", 500.0, NOON, 0.0)).now() == NOON + 100.0


def test_this_machine_has_such_clocks() -> None:
    assert name_of_boot() == name_of_boot() != ""
    assert seconds_since_boot() <= seconds_since_boot()
    first = SteadyClock()
    second = SteadyClock(last=first.reading())
    assert second.now() == pytest.approx(first.now(), abs=1.0)
