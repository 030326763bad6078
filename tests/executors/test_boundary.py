"""Tools and humans reach an executor that listens, without anybody waiting for it."""

from __future__ import annotations

import asyncio

from agentrt import Context, Runtime, program
from agentrt.executors.boundary import Boundary
from agentrt.executors.outbox import Outbox
from agentrt.testing.scripted import ScriptedExecutor


class Listening(ScriptedExecutor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(lambda call: "fine")
        self.heard: list[Boundary] = []

    def boundary(self, note: Boundary) -> None:
        self.heard.append(note)


async def test_a_programs_tools_and_humans_are_told() -> None:
    async def answer(program_id: str, question: str) -> str:
        return "yes"

    async def look_up() -> str:
        return "found"

    @program
    async def agent(ctx: Context) -> None:
        await ctx.llm("think")
        await ctx.tool(look_up)
        await ctx.human("go on?")
        await ctx.llm("think again")

    executor = Listening()
    async with Runtime(executor, ask_human=answer) as runtime:
        run = runtime.start(agent)
        await run.wait()
    assert executor.heard == [
        (run.id, "tool", "look_up"),
        (run.id, "returned", "look_up"),
        (run.id, "human", ""),
        (run.id, "answered", ""),
    ]


async def test_mail_goes_out_in_batches_one_at_a_time() -> None:
    sent: list[list[str]] = []
    gate = asyncio.Event()

    async def send(notes: list[Boundary]) -> None:
        sent.append([note.program_id for note in notes])
        await gate.wait()

    mail = Outbox(send)
    mail.post(Boundary("a", "tool", ""))
    await asyncio.sleep(0)
    mail.post(Boundary("b", "tool", ""))
    mail.post(Boundary("c", "tool", ""))
    await asyncio.sleep(0)
    assert sent == [["a"]]
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sent == [["a"], ["b", "c"]]
    await mail.close()
