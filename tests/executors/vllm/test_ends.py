"""The ends of programs, on their way to the scheduler in an engine's core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from agentrt.errors import ConfigError, EngineDiedError
from agentrt.executors.base import Chunk
from agentrt.executors.vllm.engine import CoreClient
from agentrt.request import Call
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals


class Client(CoreClient):
    """An engine that keeps what its core is told. The core answers when ``may`` is set."""

    def __init__(self) -> None:
        super().__init__(SchedulerConfig())
        self.told: list[tuple[str, Any]] = []
        self.may = asyncio.Event()
        self.may.set()

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        raise AssertionError("nobody makes a call here")
        yield  # makes it a generator

    async def _control(self, op: str, argument: Any = None) -> Any:
        self.told.append((op, argument))
        await self.may.wait()


async def test_programs_that_end_together_are_one_message() -> None:
    client, last = Client(), ProgramTotals("c", "t", service_s=2.0)
    ends = [client.end_program("a"), client.end_program("b"), client.end_program("c", last)]
    await asyncio.gather(*ends)
    await client.end_program("d")
    assert client.told == [("ends", ["a", "b", last]), ("ends", ["d"])]


async def test_an_end_that_comes_while_others_are_told_is_told_too_and_waits_for_no_other() -> None:
    client = Client()
    client.may.clear()
    first = asyncio.create_task(client.end_program("a"))
    while not client.told:
        await asyncio.sleep(0)
    second = asyncio.create_task(client.end_program("b"))
    while len(client.told) < 2:
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    client.may.set()
    await asyncio.gather(first, second)
    assert client.told == [("ends", ["a"]), ("ends", ["b"])]


async def test_who_waits_no_more_keeps_no_end_back() -> None:
    client = Client()
    gone, stays = (asyncio.create_task(client.end_program(name)) for name in "ab")
    await asyncio.sleep(0)
    gone.cancel()
    await stays
    assert client.told == [("ends", ["a", "b"])]


async def test_an_engine_that_closes_keeps_nobody_waiting() -> None:
    client = Client()
    client.may.clear()
    end = asyncio.create_task(client.end_program("a"))
    while not client.told:
        await asyncio.sleep(0)
    await client.close_outbox()
    await end


async def test_what_the_core_refuses_is_raised_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(self: Client, op: str, argument: Any = None) -> None:
        raise ValueError(op)

    monkeypatch.setattr(Client, "_control", refuse)
    client = Client()
    ends = [client.end_program(name) for name in "ab"]
    found = await asyncio.gather(*ends, return_exceptions=True)
    assert [str(one) for one in found] == ["ends", "ends"]


async def test_settings_of_an_engine_that_is_dead_are_not_called_refused() -> None:
    """The user must not look for a fault in settings that no engine has read."""
    from vllm.v1.engine.exceptions import EngineDeadError

    client, answers = Client(), [EngineDeadError(), Exception("3 calls are unfinished")]
    with pytest.raises(EngineDiedError, match="the engine is not running"):
        await client.configure(SchedulerConfig("fcfs"))

    async def answer(*arguments: object) -> None:
        raise answers.pop(0)

    core: Any = SimpleNamespace(engine_core=SimpleNamespace(call_utility_async=answer))
    client._llm = core
    with pytest.raises(EngineDiedError, match="the engine died while it changed its settings"):
        await client.configure(SchedulerConfig("fcfs"))
    with pytest.raises(ConfigError, match="refuses these settings: 3 calls are unfinished"):
        await client.configure(SchedulerConfig("fcfs"))
