"""Programs that events start: their input, their bound, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator

from agentrt import Context, Event, Runtime, program
from agentrt.errors import ConfigError, ToolUnavailableError
from agentrt.graph import NodeKind
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.store import SQLiteStore
from agentrt.runtime.events import ProgramStarted, RunEnded
from agentrt.runtime.run import Run
from agentrt.serving.programs.api import api as programs
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.runs import ProgramRuns
from agentrt.serving.server import ServedProgram, Server
from agentrt.serving.tenants import Limits, Tenants
from agentrt.serving.triggers import Trigger, api_with, program_of
from tests.doubles.scripted import ScriptedExecutor
from tests.interrupts.byhand import ByHand


@program
async def reacts(ctx: Context, event: dict[str, Any]) -> Any:
    if event["payload"] == "bad":
        raise ValueError("no idea")
    if event["payload"] == "wait":
        await asyncio.Event().wait()
    return event


@program
async def deaf(ctx: Context) -> None: ...


class Reading(BaseModel):
    degrees: int


class Alarm(BaseModel):
    """Only a part of an event."""

    payload: Reading


@program
async def typed(ctx: Context, alarm: Alarm) -> int:
    if alarm.payload.degrees == 451:
        await ctx.sleep(3600)
    if alarm.payload.degrees == 99:
        raise ValueError("too hot")
    return alarm.payload.degrees + 1


def parsed(event: Any) -> Any:
    return {"payload": json.loads(event["payload"])}


@program
async def text(ctx: Context, alarm: Annotated[Alarm, BeforeValidator(parsed)]) -> None:
    await typed(ctx, alarm)


def degrees_in(event: Any) -> Any:
    return event["payload"]["degrees"]


@program
async def picked(ctx: Context, degrees: Annotated[int, BeforeValidator(degrees_in)]) -> int:
    return degrees + 1


SERVED = {
    "typed": ServedProgram(typed, "x.py"),
    "text": ServedProgram(text, "x.py"),
    "reacts": ServedProgram(reacts, "x.py"),
    "deaf": ServedProgram(deaf, "x.py"),
    "picked": ServedProgram(picked, "x.py"),
}


class Log:
    """The started and ended programs; a test waits for a number of ends."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.ended, self.tenants = runtime, 0, list[str]()
        self.runs = list[Run]()
        self._changed = asyncio.Event()
        runtime.listen(self.saw)

    def saw(self, event: object) -> None:
        if isinstance(event, ProgramStarted):
            self.runs.append(self.runtime.runs[event.program_id])
            self.tenants.append(self.runs[-1].row.tenant)
        self.ended += isinstance(event, RunEnded)
        self._changed.set()

    async def until(self, *, began: int = 0, ended: int = 0) -> None:
        async with asyncio.timeout(60):
            while len(self.tenants) < began or self.ended < ended:
                self._changed.clear()
                await self._changed.wait()


async def refused(source: ByHand) -> None:
    async with asyncio.timeout(60):
        while not source.refused:
            await asyncio.sleep(0)


@asynccontextmanager
async def served(
    source: ByHand, *triggers: Trigger, **limits: int
) -> AsyncIterator[tuple[Server, Log]]:
    async with Runtime(ScriptedExecutor(lambda call: "x"), events=source) as runtime:
        tenants = Tenants(runtime.now, Limits(**limits))
        server, said = Server(runtime, ("m",), SERVED, tenants=tenants), list[str]()
        async with api_with(triggers, said.append)(server):
            yield server, Log(runtime)
        assert not source.live
        assert not runtime.runs
        assert said == []


async def test_each_event_starts_a_program() -> None:
    source = ByHand(Event("a", {"degrees": 80}), Event("b", None))
    async with served(source, Trigger("#", "reacts", tenant="acme")) as (_, log):
        await log.until(ended=2)
    assert log.tenants == ["acme", "acme"]
    assert source.refused == []


async def test_surplus_failing_and_late_events_are_refused() -> None:
    """1 Two wait, which is the most. 2 A third is refused. 3 The server stops: the two are
    cancelled, and their events kept."""
    source = ByHand(Event("a", "wait"), Event("b", "wait"), Event("c", "x"))
    async with served(source, Trigger("#", "reacts", most=2)) as (_, log):
        await log.until(began=2)
        await refused(source)
    reasons = {event.topic: why for event, why, _, _ in source.refused}
    assert reasons["c"] == "2 programs of this trigger run already"
    assert "was cancelled" in reasons["a"]
    assert set(reasons) == {"a", "b", "c"}


async def test_a_tenants_bound_is_one_for_all_that_start_programs() -> None:
    """1 A client has started the most. 2 An event is refused. 3 The client's ends: the next event
    starts its own."""
    source = ByHand()
    async with served(source, Trigger("#", "reacts"), programs=1) as (server, log):
        clients = ProgramRuns(server)
        body = RunRequest(input={"payload": "wait"}, deadline=None)
        one = clients.start(reacts, "default", body)
        await source.asked.wait()
        [subscription] = source.live
        subscription.put(Event("a", "x"))
        await refused(source)
        assert "'default' has 1 live programs" in source.refused[0][1]
        one.run.cancel()
        await log.until(ended=1)
        while server.live:
            await asyncio.sleep(0)
        subscription.put(Event("b", "x"))
        await log.until(ended=2)
        await clients.close()
    assert [event.topic for event, *_ in source.refused] == ["a"]


async def test_a_program_that_fails_says_why() -> None:
    source = ByHand(Event("a", "bad"))
    async with served(source, Trigger("#", "reacts")) as (_, log):
        await log.until(ended=1)
    [(event, why, name, tenant)] = source.refused
    assert (event.topic, name, tenant) == ("a", "reacts", "default")
    assert why.endswith("failed: ValueError: no idea")


async def test_an_event_has_the_type_that_the_program_expects() -> None:
    """1 One that fits is converted. 2 One that does not fit starts nothing. 3 The event of a
    program that fails is the whole event. 4 One on which the type's own validator raises another
    error than pydantic's starts nothing, and the next event still starts its program."""
    source = ByHand(Event("a", {"degrees": "80"}), Event("b", "hot"), Event("c", {"degrees": 99}))
    async with served(source, Trigger("#", "typed")) as (_, log):
        await log.until(ended=2)
        await refused(source)
    assert [run.result for run in log.runs] == [81, None]
    events = {event.topic: (event.payload, why) for event, why, _, _ in source.refused}
    assert events.keys() == {"b", "c"}
    assert events["b"][0] == "hot"
    assert "'alarm' must be" in events["b"][1]
    assert events["c"][0] == {"degrees": 99}
    assert events["c"][1].endswith("failed: ValueError: too hot")
    source = ByHand(Event("a", {"celsius": 80}), Event("b", {"degrees": 80}))
    async with served(source, Trigger("#", "picked")) as (_, log):
        await log.until(ended=1)
    assert [run.result for run in log.runs] == [81]
    [(event, why, *where)] = source.refused
    assert (event, where) == (source.first[0], ["picked", "default"])
    assert why.endswith("by its type failed with KeyError: 'degrees'")


@pytest.mark.parametrize("payload", [{"degrees": 451}, b'{"degrees": 451}'])
async def test_a_resumed_run_still_knows_its_event(tmp_path: Path, payload: Any) -> None:
    """1 A run waits when the server is killed. 2 The next server resumes it from the journal. 3 It
    is cancelled, so its event is refused, as it came, though the program got only a part of it."""

    @asynccontextmanager
    async def opened(path: Path, source: ByHand, *triggers: Trigger) -> AsyncIterator[Runtime]:
        async with (
            await Journal.open(lambda: SQLiteStore(path / "j")) as journal,
            Runtime(ScriptedExecutor(), events=source, journal=journal) as runtime,
        ):
            server = Server(runtime, ("m",), SERVED)
            async with programs(server), api_with(triggers, lambda line: None)(server):
                yield runtime

    (tmp_path / "first").mkdir()
    source, name = ByHand(Event("a", payload)), "text" if isinstance(payload, bytes) else "typed"
    async with opened(tmp_path / "first", source, Trigger("#", name)) as runtime:
        async with asyncio.timeout(60):
            while not runtime.runs:
                await asyncio.sleep(0)
            [run] = runtime.runs.values()
            while not any(node.kind is NodeKind.EVENT for node in run.dag.nodes()):
                await asyncio.sleep(0)
        assert runtime.journal is not None
        await runtime.journal.written()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
    after = ByHand()
    async with opened(tmp_path / "second", after) as runtime:
        [run] = runtime.runs.values()
        run.cancel()
        await refused(after)
    assert [event for event, *_ in after.refused] == [Event("a", payload)]


@pytest.mark.parametrize("content", ["full", "digest", "none"])
async def test_only_a_journal_with_full_content_has_the_event(
    tmp_path: Path, content: Literal["full", "digest", "none"]
) -> None:
    source, path = ByHand(Event("a", {"degrees": 80, "room": "the vault"})), tmp_path / "j"
    options = JournalOptions(content=content)
    async with (
        await Journal.open(lambda: SQLiteStore(path), options) as journal,
        Runtime(ScriptedExecutor(), events=source, journal=journal) as runtime,
    ):
        log = Log(runtime)
        async with api_with([Trigger("#", "typed")], print)(Server(runtime, ("m",), SERVED)):
            await log.until(ended=1)
    with closing(sqlite3.connect(path)) as reader:
        rows = "\n".join(reader.iterdump())
    assert "typed" in rows
    assert ("the vault" in rows) == (content == "full")


async def test_a_stopping_server_accepts_no_new_events() -> None:
    source = ByHand()
    async with served(source, Trigger("#", "reacts")) as (server, log):
        await source.asked.wait()
        server.draining = True
        source.live[0].put(Event("a", 1))
        await refused(source)
    assert log.tenants == []
    assert [why for _, why, _, _ in source.refused] == ["the server is shutting down"]


async def test_a_broker_that_is_absent_is_tried_again() -> None:
    class Late(ByHand):
        absent = True

        async def subscribe(self, topic: str, tenant: str = "default") -> Any:
            if self.absent:
                self.absent = False
                raise ToolUnavailableError("broker x: it cannot be reached")
            return await super().subscribe(topic, tenant)

    source, said = Late(Event("a", 1)), list[str]()
    async with Runtime(ScriptedExecutor(lambda call: "x"), events=source) as runtime:
        log = Log(runtime)
        async with api_with([Trigger("#", "reacts")], said.append)(Server(runtime, (), SERVED)):
            await log.until(ended=1)
    assert said == ["on #: broker x: it cannot be reached; retrying"]


def test_only_programs_with_an_input_can_be_started() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown program; served programs: typed, text, reacts, deaf, picked"
    ):
        program_of(Trigger("#", "nobody"), SERVED)
    with pytest.raises(
        ConfigError, match=r"the program takes no input, .*; write async def deaf\(ctx, event\)"
    ):
        program_of(Trigger("#", "deaf"), SERVED)
