"""The actor around an engine, without Ray: batches, ends, errors and aborted calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrt.engines import EngineOptions
from agentrt.errors import AgentrtError, CallRejectedError, EngineError
from agentrt.executors.base import Chunk, KVEventListener, Notification
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.ray.engine import PROGRESS, EngineActor, Output
from agentrt.request import Call
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch
from agentrt.scheduler import ProgramTotals
from tests.doubles.scripted import ScriptedExecutor
from tests.executors.replicas.cast import TEXT, call_of


class PeculiarError(AgentrtError):
    """An error that cannot be made again from its ``args``, with which pickle makes errors
    again.
    """

    def __init__(self, who: str, what: str) -> None:
        super().__init__(f"{who}: {what}")


class Engine(ScriptedExecutor):
    def __init__(self, options: EngineOptions) -> None:
        super().__init__(self._say_or_fail, slots=4)
        self.notes: list[Notification] = []

    def _say_or_fail(self, call: Call) -> str:
        if call.program_id == "rejected":
            raise CallRejectedError("too long") from ValueError("the cause stays at home")
        if call.program_id == "peculiar":
            raise PeculiarError("who", "what")
        if call.program_id == "odd":
            raise ZeroDivisionError("what?")
        return TEXT

    def pids(self) -> list[int]:
        return [7]

    def alive(self) -> bool:
        return self._open

    def notify(self, note: Notification) -> None:
        self.notes.append(note)

    async def cpu_seconds(self) -> float:
        return 1.5

    def on_kv_events(self, listener: KVEventListener) -> None:
        self.hear = listener


@pytest.fixture
async def actor(monkeypatch: pytest.MonkeyPatch) -> EngineActor:
    monkeypatch.setattr("agentrt.executors.ray.engine.VLLMEngine", Engine)
    actor = EngineActor(EngineOptions())
    assert await actor.start() == (ExecutorInfo(("scripted",), 4), [7])
    assert await actor.collect() == [(PROGRESS, Chunk("ready"))]
    return actor


async def all_of(actor: EngineActor, calls: int) -> tuple[list[Output], int]:
    """Return the outputs until ``calls`` calls have ended, and the number of answers that had
    them.
    """
    outputs: list[Output] = []
    batches = 0
    async with asyncio.timeout(60):
        while sum(not isinstance(output, Chunk) for _, output in outputs) < calls:
            outputs += await actor.collect()
            batches += 1
            for _ in range(50):  # the answer travels
                await asyncio.sleep(0)
    return outputs, batches


async def test_outputs_of_all_calls_leave_together(actor: EngineActor) -> None:
    for number in range(8):
        await actor.begin(call_of(number), True)
    outputs, batches = await all_of(actor, 8)
    for number in range(8):
        own = [output for call_id, output in outputs if call_id == f"p/{number}"]
        assert own[-1] is None
        chunks = [output for output in own if isinstance(output, Chunk)]
        assert "".join(chunk.text for chunk in chunks) == TEXT
        assert chunks[-1].reply is not None
    assert batches <= 3 < len(outputs)


@pytest.mark.parametrize(
    ("program", "kind", "words"),
    [
        ("rejected", CallRejectedError, "too long"),
        ("odd", EngineError, "call odd/0: ZeroDivisionError: what?"),
        ("peculiar", EngineError, "call peculiar/0: PeculiarError: who: what"),
    ],
)
async def test_an_error_ends_a_call(
    actor: EngineActor, program: str, kind: type[AgentrtError], words: str
) -> None:
    await actor.begin(call_of(0, program), False)
    [(call_id, error)], _ = await all_of(actor, 1)
    assert call_id == f"{program}/0"
    assert type(error) is kind
    assert str(error) == words
    assert error.__cause__ is None


async def test_an_aborted_call_says_what_it_used(actor: EngineActor) -> None:
    await actor.begin(call_of(0), True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    report = await actor.aborted("p/0")
    assert 0 < report.steps < len(TEXT.split())
    outputs, _ = await all_of(actor, 1)
    assert outputs[-1] == ("p/0", None)
    await actor.stop("p/0")  # it is gone already


async def test_a_call_that_is_stopped_before_it_begins_ends(actor: EngineActor) -> None:
    await actor.begin(call_of(0), True)
    await actor.stop("p/0")
    assert await all_of(actor, 1) == ([("p/0", None)], 1)


async def test_notes_and_questions_reach_the_engine(actor: EngineActor) -> None:
    note = Notification("p", "tool", "search")
    await actor.notify([note])
    totals = ProgramTotals("p", "t", service_s=3.0)
    await actor.end_program("p", totals)
    engine: Any = actor._engine
    assert (engine.notes, engine.totals) == ([note], {"p": totals})
    assert await actor.cpu_seconds() == 1.5
    assert (await actor.snapshot())["running"] == []


async def test_what_the_engine_holds_comes_between_the_outputs(actor: EngineActor) -> None:
    engine: Any = actor._engine
    note = KVEventBatch.of(1, [2, 3])
    engine.hear(note)
    assert await actor.collect() == [(KV_EVENTS, note)]


def test_it_works_in_the_folder_of_the_program_if_its_node_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, other = tmp_path / "node", tmp_path / "program"
    own.mkdir()
    monkeypatch.chdir(own)
    EngineActor(EngineOptions(), str(other))
    assert Path.cwd() == own
    other.mkdir()
    EngineActor(EngineOptions(), str(other))
    assert Path.cwd() == other


async def test_a_dead_engine_does_not_say_that_it_is_well(actor: EngineActor) -> None:
    await actor.close()
    with pytest.raises(EngineError, match="the engine core is dead"):
        await actor.snapshot()
