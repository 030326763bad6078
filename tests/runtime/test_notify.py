"""The executor is notified of tools and humans, and no program waits for that."""

from __future__ import annotations

import pytest

from agentrt import Context, Runtime, Tool, program, tool
from agentrt.executors.base import Notification
from agentrt.interrupts.events import Event
from agentrt.interrupts.questions import Question
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.owners import BlockOwners
from agentrt.scheduler.retention import make_retention
from agentrt.scheduler.state import EngineProgram, QueuedCall
from tests.doubles.scripted import ScriptedExecutor
from tests.interrupts.byhand import ByHand
from tests.interrupts.scripted import Scripted
from tests.interrupts.worker_tools import pid


class Listening(ScriptedExecutor):
    """An executor that records its notifications."""

    def __init__(self) -> None:
        super().__init__(lambda call: "fine")
        self.heard: list[Notification] = []

    def notify(self, note: Notification) -> None:
        self.heard.append(note)


async def test_an_executor_is_notified_of_tools_and_humans() -> None:
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
async def test_a_context_has_the_same_value_for_every_kind_of_wait(
    kind: str, retention: str
) -> None:
    """An engine gets the same notifications for tools in this process, in a worker and elsewhere,
    and for events.
    """

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
    """The value of the program's blocks after each notification, as the engine's scheduler computes
    it.
    """
    learned = Learned()
    made = make_retention(SchedulerConfig(retention=retention), learned)
    assert made is not None
    owners, row = BlockOwners(learned), EngineProgram(notes[0].program_id, "agent", resident=True)
    call = QueuedCall("c", row, None, None, 0.0)
    row.queued["c"] = call
    owners.call_arrived(call, 0.0)
    row.queued.clear()
    owners.call_finished(call, 1.0)
    blocks = row.cached
    assert blocks is not None
    found: list[object] = []
    for at, note in enumerate(notes, 2):
        row.tools += 1 if note.kind == "tool" else -1
        if note.kind == "tool":
            owners.interrupt_started(row, "tool", note.name, at)
        else:
            owners.interrupt_ended(row, at)
        worth = made.worth(blocks, at + 0.5, 1)
        found.append((blocks.gap, made.place(blocks), worth, made.expired(blocks, at + 60.0)))
    return found
