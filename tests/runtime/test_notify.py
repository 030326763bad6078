"""Tools and humans are told to the executor, without anybody waiting for it."""

from __future__ import annotations

from agentrt import Context, Runtime, program
from agentrt.executors.base import Notification
from agentrt.interrupts.questions import Question
from agentrt.testing.scripted import ScriptedExecutor


class Listening(ScriptedExecutor):
    """Records what it is told."""

    def __init__(self) -> None:
        super().__init__(lambda call: "fine")
        self.heard: list[Notification] = []

    def notify(self, note: Notification) -> None:
        self.heard.append(note)


async def test_a_programs_tools_and_humans_are_told() -> None:
    async def answer(question: Question) -> str:
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
