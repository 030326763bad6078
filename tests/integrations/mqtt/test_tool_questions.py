"""Tools at a worker ask the human of the program that called them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentrt import Context, Runtime, ToolContext, program, tool
from agentrt.errors import QuestionClosedError, ToolArgumentsError, ToolFailedError
from agentrt.graph import NodeKind, NodeState
from agentrt.integrations.mqtt import Broker, MqttTools, Worker
from agentrt.interrupts.questions import Question
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mqtt.conftest import running
from tests.integrations.mqtt.side import until

COLOURS = {"enum": ["red", "blue"]}


@tool
async def paints(context: ToolContext) -> Any:
    return await context.ask("Which colour?", COLOURS)


@tool
def signs(context: ToolContext) -> Any:
    return asyncio.run(context.ask("Who are you?"))


@program
async def calls(ctx: Context, name: str) -> Any:
    async with asyncio.timeout(60):
        while name not in {one.name for one in await ctx.tools()}:
            await asyncio.sleep(0.005)
    return await ctx.tool(name)


@asynccontextmanager
async def opened(
    broker: Broker, *tools: Any, resend_s: float = 10.0, **options: Any
) -> AsyncIterator[tuple[Runtime, MqttTools]]:
    """A runtime and a worker. No task and no question is left when it ends."""
    before = asyncio.all_tasks()
    transport = MqttTools(broker, resend_s=resend_s)
    options = {"ask_human": None, **options}
    async with running(Worker(broker, tools)) as worker:
        async with Runtime(ScriptedExecutor(), tools=[transport], **options) as runtime:
            yield runtime, transport
            assert not runtime.questions.open
        assert not worker._replies.questions._open
    assert asyncio.all_tasks() <= before


async def asked(runtime: Runtime) -> Question:
    await until(lambda: bool(runtime.questions.open))
    [question] = runtime.questions.open.values()
    return question


async def test_a_question_is_the_programs_and_its_answer_goes_to_the_tool(broker: Broker) -> None:
    async with opened(broker, paints, signs) as (runtime, _):
        run = runtime.start(calls, "paints", tenant="acme")
        question = await asked(runtime)
        assert (question.text, question.program_id, question.tenant) == (
            "Which colour?",
            run.id,
            "acme",
        )
        with pytest.raises(ToolArgumentsError, match="'green' is not one of"):
            runtime.questions.answer(question.id, "green")
        runtime.questions.answer(question.id, "blue")
        assert await run.wait() == "blue"
        kinds = [(node.kind, node.state) for node in run.dag.nodes()]
        assert kinds == [(NodeKind.TOOL, NodeState.DONE), (NodeKind.HUMAN, NodeState.DONE)]
        other = runtime.start(calls, "signs")
        runtime.questions.answer((await asked(runtime)).id, "Ann")
        assert await other.wait() == "Ann"


async def test_where_nobody_can_be_asked_the_tool_hears_why(broker: Broker) -> None:
    @tool
    async def wrong(context: ToolContext) -> Any:
        return await context.ask("Which?", {"type": "colour"})

    async def nobody(question: Question) -> Any:
        raise QuestionClosedError("nobody is here")

    async with opened(broker, paints, wrong, ask_human=nobody) as (runtime, _):
        with pytest.raises(QuestionClosedError, match="nobody is here"):
            await runtime.start(calls, "paints").wait()
        with pytest.raises(ToolFailedError, match=r"ConfigError: a question's schema: .*'colour'"):
            await runtime.start(calls, "wrong").wait()


async def test_an_answer_that_is_too_large_is_said(broker: Broker) -> None:
    async def writer(question: Question) -> Any:
        return "x" * (1 << 20)

    async with opened(broker, signs, ask_human=writer) as (runtime, _):
        with pytest.raises(ToolArgumentsError, match="has 1,048,"):
            await runtime.start(calls, "signs").wait()


async def test_a_tool_that_waits_no_more_withdraws_its_question(broker: Broker) -> None:
    enough = asyncio.Event()

    @tool
    async def impatient(context: ToolContext) -> str:
        asking = asyncio.create_task(context.ask("Well?"))
        await enough.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: not runtime.questions.open)
        return "went on"

    async with opened(broker, impatient) as (runtime, _):
        run = runtime.start(calls, "impatient")
        question = await asked(runtime)
        enough.set()
        assert await run.wait() == "went on"
        assert question.state == "withdrawn"


async def test_a_cancelled_program_withdraws_what_its_tools_ask(broker: Broker) -> None:
    """Also what a function in a thread asks, which learns that its call is over."""
    heard: list[str] = []

    @tool
    def stubborn(context: ToolContext) -> None:
        try:
            asyncio.run(context.ask("Go on?"))
        except QuestionClosedError as error:
            heard.append(str(error))

    async with opened(broker, stubborn) as (runtime, _):
        run = runtime.start(calls, "stubborn")
        question = await asked(runtime)
        run.cancel()
        assert run.task is not None
        await asyncio.wait([run.task])
        assert question.state == "withdrawn"
        await until(lambda: bool(heard))
    assert [line.partition(",")[0] for line in heard] == ["the tool's call has ended"]


async def test_an_answer_that_is_lost_is_given_again(
    broker: Broker, never_silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The human is asked once."""
    lost: list[bytes] = []
    give = MqttTools._give

    def lossy(self: MqttTools, topics: Any, worker: str, answer: bytes) -> None:
        if lost:
            give(self, topics, worker, answer)
        else:
            lost.append(answer)

    monkeypatch.setattr(MqttTools, "_give", lossy)
    async with opened(broker, paints, resend_s=0.05) as (runtime, _):
        run = runtime.start(calls, "paints")
        runtime.questions.answer((await asked(runtime)).id, "red")
        assert await run.wait() == "red"
        assert len(lost) == len(runtime.questions.closed) == 1
