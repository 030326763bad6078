"""A server in the test's own process, whose programs are parked when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from agentrt import Context, Runtime, program
from agentrt.interrupts.events import EventSource
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.store import Store
from agentrt.program import Program
from agentrt.request import Call
from agentrt.serving.app import opened_app
from agentrt.serving.programs.api import api as programs
from agentrt.serving.programs.parked import Parking
from agentrt.serving.questions.api import api as questions
from agentrt.serving.server import Api, ServedProgram, Server
from agentrt.steady import MachineClocks
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.killing import QuickStore

WAIT_S = 60.0
Code = Callable[[Context], Awaitable[Any]]


def of(code: Code) -> Program:
    """The program ``main`` of this code."""

    async def main(ctx: Context) -> Any:
        return await code(ctx)

    return Program(main, "main")


@program
async def asks(ctx: Context, text: str) -> list[str]:
    first = await ctx.llm(text)
    return [str(first), await ctx.human(f"{text}?"), str(await ctx.llm(f"{text} again"))]


@dataclass(slots=True)
class Clock:
    """The runtime's, of which the test says how it continues."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class Local:
    """A server that runs, and a client of it."""

    server: Server
    client: httpx.AsyncClient
    parking: Parking
    engine: ScriptedExecutor
    clock: Clock

    async def started(self, name: str, **body: Any) -> str:
        """The id of a new run, for whose end nobody waits."""
        answer = await self.client.post(f"/v1/programs/{name}/runs", json={"wait": False, **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    async def run(self, run_id: str) -> Any:
        name = run_id.rpartition("-")[0]
        answer = await self.client.get(f"/v1/programs/{name}/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, run_id: str, holds: Callable[[Any], bool]) -> Any:
        """The run, once that holds of it; all that can be parked is, meanwhile."""
        async with asyncio.timeout(WAIT_S):
            while not holds(found := await self.run(run_id)):
                await self.park()
        return found

    async def parked(self, run_id: str) -> Any:
        """The run, once it is parked, and nothing of it is in memory."""
        found = await self.until(run_id, lambda run: run["parked"] or run["state"] == "done")
        while run_id in self.server.runtime.runs:
            await asyncio.sleep(0)
        assert found["parked"], found
        return found

    async def done(self, run_id: str) -> Any:
        """The result of a run."""
        ends = ("done", "failed", "cancelled")
        found = await self.until(run_id, lambda run: run["state"] in ends)
        assert found["state"] == "done", found
        return found["result"]

    async def park(self) -> None:
        """An hour goes by for programs; whose time has come continues."""
        self.clock.now += 3600.0
        await self.parking.sweep()
        await asyncio.sleep(0)

    async def questions(self, **of: Any) -> list[Any]:
        answer = await self.client.get("/v1/questions", params=of)
        return list(answer.json()["data"])

    async def answer(self, question: Any, value: Any, status: int = 200) -> Any:
        path = f"/v1/questions/{question['id']}"
        answer = await self.client.post(path, json={"answer": value})
        assert answer.status_code == status, answer.text
        return answer.json()


def says(call: Call) -> str:
    return f"said {call.spec.messages[-1]['content']}"


@asynccontextmanager
async def served(
    journal: Path | Callable[[], Store],
    *natives: Program,
    park_s: float = 0.001,
    events: EventSource | None = None,
    apis: Sequence[Api] = (),
    options: JournalOptions = JournalOptions(),  # noqa: B008  # it is frozen
    machine: MachineClocks | None = None,
) -> AsyncIterator[Local]:
    """A server with this journal, until the block ends: what is not parked then is as killed."""
    opened = (lambda: QuickStore(journal)) if isinstance(journal, Path) else journal
    engine, clock = ScriptedExecutor(says), Clock()
    async with (
        await Journal.open(opened, options, machine) as kept,
        Runtime(engine, ask_human=None, journal=kept, clock=clock, events=events) as runtime,
    ):
        native = {one.name: ServedProgram(one, "here.py") for one in natives}
        server = Server(runtime, ("scripted",), native, park_s=park_s)
        async with opened_app(server, [programs, questions, *apis]) as app:
            [parking] = [one for one in server.questions.sources if isinstance(one, Parking)]
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", timeout=WAIT_S
            ) as client:
                yield Local(server, client, parking, engine, clock)
                server.park_s = 0.0
