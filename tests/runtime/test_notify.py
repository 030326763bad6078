"""Tools and humans are told to the executor, without anybody waiting for it."""

from __future__ import annotations

import pytest

from agentrt import Context, Runtime, Tool, program, tool
from agentrt.executors.base import Notification
from agentrt.interrupts.events import Event
from agentrt.interrupts.questions import Question
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention import Contexts, make_retention
from agentrt.scheduler.table import ProgramRow
from tests.doubles.scripted import ScriptedExecutor
from tests.interrupts.byhand import ByHand
from tests.interrupts.scripted import Scripted
from tests.interrupts.worker_tools import pid


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
    assert [note[:3] for note in executor.heard] == [
        (run.id, "tool", "look_up"),
        (run.id, "returned", "look_up"),
        (run.id, "human", ""),
        (run.id, "answered", ""),
    ]


REMOTE = Scripted(7, name="mqtt")
KINDS = {
    "thread": tool(name="drill")(lambda: 7),
    "process": pid.renamed("drill"),
    "elsewhere": Tool("drill", transport=REMOTE),
    "event": None,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("retention", ["ttl", "cost"])
async def test_a_context_is_kept_alike_wherever_its_program_waits(
    kind: str, retention: str
) -> None:
    """An engine is told the same of a tool here, in a process, elsewhere, and of an event."""

    @program
    async def agent(ctx: Context) -> None:
        await ctx.llm("think")
        drill = KINDS[kind]
        await (ctx.event("drill") if drill is None else ctx.tool(drill))

    executor = Listening()
    async with Runtime(executor, tools=[REMOTE], events=ByHand(Event("drill", 7))) as runtime:
        run = runtime.start(agent)
        await run.wait()
    assert [note[:3] for note in executor.heard] == [
        (run.id, "tool", "drill"),
        (run.id, "returned", "drill"),
    ]
    assert ranks(executor.heard, retention) == ranks(
        [Notification(run.id, "tool", "drill"), Notification(run.id, "returned")], retention
    )


def ranks(notes: list[Notification], retention: str) -> list[object]:
    """How much its blocks are worth after each of them, as the plug-in in the engine hears it."""
    made = make_retention(SchedulerConfig(retention=retention))
    assert made is not None
    book = Contexts(made)
    context = book.call_arrived(ProgramRow(notes[0].program_id, "agent"), 0.0)
    book.call_ended(context, 1.0)
    found: list[object] = []
    for at, note in enumerate(notes, 2):
        if note.what == "tool":
            book.tool_started(note.program_id, note.name, at)
        else:
            book.tool_ended(note.program_id, at)
        found.append((context.phase, book.rank(context, at), made.expired(context, at)))
    return found
