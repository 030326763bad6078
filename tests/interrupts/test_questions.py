"""Questions of programs: the first answer counts, and each question is closed once, in one way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import Any

import pytest
import pytest_asyncio
from pydantic import BaseModel

from agentrt import Context, Runtime, ToolContext, program, tool
from agentrt.errors import (
    ConfigError,
    InterruptExpiredError,
    QuestionClosedError,
    ToolArgumentsError,
)
from agentrt.graph import NodeState
from agentrt.interrupts.questions import Question
from agentrt.runtime.run import Run
from tests.doubles.scripted import ScriptedExecutor

SOON = 1e-6


class Order(BaseModel):
    drink: str
    cups: int


class Asked:
    """A runtime whose questions wait; ``states`` are those that a listener was told, in order."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.questions = runtime.questions
        self.states: list[str] = []
        self.questions.listen(lambda question: self.states.append(question.state))

    def start(self, *args: Any, **kwargs: Any) -> Run:
        """Start a program that asks once, with these arguments of `Context.human`."""

        @program
        async def asks(ctx: Context) -> Any:
            return await ctx.human("Which?", *args, **kwargs)

        return self.runtime.start(asks)

    async def one(self) -> Question:
        """The open question, once there is one."""
        async with asyncio.timeout(60):
            while not self.questions.open:
                await asyncio.sleep(0)
        [question] = self.questions.open.values()
        return question


@pytest_asyncio.fixture
async def asked() -> AsyncIterator[Asked]:
    async with Runtime(ScriptedExecutor(), ask_human=None) as runtime:
        yield Asked(runtime)


async def test_the_first_of_two_answers_counts(asked: Asked) -> None:
    run = asked.start()
    question = await asked.one()
    asked.questions.answer(question.id, "left")
    with pytest.raises(QuestionClosedError, match="is closed; its state is 'answered'"):
        asked.questions.answer(question.id, "right")
    assert await run.wait() == "left"
    assert run.dag.node(0).state is NodeState.DONE
    assert asked.states == ["open", "answered"]
    assert not asked.questions.open


async def test_an_answerer_that_is_not_async_is_named_and_leaves_no_question_open() -> None:
    def answerer(question: Any) -> Any:
        return "left"

    async with Runtime(ScriptedExecutor(), ask_human=answerer) as runtime:
        asked = Asked(runtime)
        with pytest.raises(ConfigError, match=r"ask_human=\) returned 'left'; it must be an async"):
            await asked.start().wait()
        assert not asked.questions.open
        assert asked.states == ["open", "withdrawn"]


async def test_past_its_timeout_a_question_is_expired(asked: Asked) -> None:
    run = asked.start(timeout=SOON)
    with pytest.raises(InterruptExpiredError, match=r"nobody answered within 1e-06 s: 'Which\?'"):
        await run.wait()
    [question] = asked.questions.closed.values()
    with pytest.raises(QuestionClosedError, match="is closed; its state is 'expired'"):
        asked.questions.answer(question.id, "late")
    assert run.dag.node(0).state is NodeState.EXPIRED
    assert asked.states == ["open", "expired"]


@pytest.mark.parametrize("default", [None, "tea", Order(drink="tea", cups=1)])
async def test_past_its_timeout_the_default_is_the_answer(asked: Asked, default: Any) -> None:
    run = asked.start(schema=Order, timeout=SOON, default=default)
    assert await run.wait() is default
    assert run.dag.node(0).state is NodeState.EXPIRED


async def test_the_end_of_a_program_withdraws_its_questions(asked: Asked) -> None:
    @program
    async def asks_and_ends(ctx: Context) -> str:
        ctx.spawn(Context.human, "Still there?")
        await asked.one()
        return "over"

    run = asked.runtime.start(asks_and_ends)
    assert await run.wait() == "over"
    cancelled = asked.start()
    question = await asked.one()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled.wait()
    with pytest.raises(QuestionClosedError, match="is closed; its state is 'withdrawn'"):
        asked.questions.answer(question.id, "yes")
    assert asked.states == ["open", "withdrawn"] * 2
    assert run.dag.node(0).state is NodeState.CANCELLED


async def test_the_end_of_a_tools_call_withdraws_the_questions_of_its_thread(asked: Asked) -> None:
    refused = Future[list[str]]()

    @tool
    def asks(context: ToolContext) -> None:
        errors = []
        for text in ("Go on?", "And now?"):
            try:
                asyncio.run(context.ask(text))
            except QuestionClosedError as error:
                errors.append(str(error))
        refused.set_result(errors)

    @program
    async def ends_its_call(ctx: Context) -> list[str]:
        call = asyncio.create_task(ctx.tool(asks))
        question = await asked.one()
        call.cancel()
        await asyncio.wait([call])
        return [question.state, *await asyncio.wrap_future(refused)]

    ended = "the tool's call has ended, so its questions cannot be answered any more"
    assert await asked.runtime.start(ends_its_call).wait() == ["withdrawn", ended, ended]
    assert asked.states == ["open", "withdrawn"]


@pytest.mark.parametrize(
    "arguments",
    [{"timeout": 0}, {"timeout": float("nan")}, {"schema": {"type": "?"}}, {"choices": ()}],
)
async def test_what_cannot_be_asked_is_refused(asked: Asked, arguments: Any) -> None:
    with pytest.raises(ConfigError):
        await asked.start(**arguments).wait()
    assert not asked.states


async def test_an_answer_of_nobodys_question(asked: Asked) -> None:
    with pytest.raises(QuestionClosedError, match="question x is unknown"):
        asked.questions.answer("x", "yes")


async def test_only_the_last_closed_questions_are_remembered(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.interrupts.questions._KEPT", 2)
    for number in range(3):
        run = asked.start()
        asked.questions.answer((await asked.one()).id, str(number))
        await run.wait()
    assert len(asked.questions.closed) == 2


# -- beside somebody who is asked -----------------------------------------------------------


class Somebody:
    """Is asked, and answers ``says`` once it is set."""

    def __init__(self) -> None:
        self.says: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.left = 0

    async def __call__(self, question: Question) -> Any:
        try:
            return await asyncio.shield(self.says)
        except asyncio.CancelledError:
            self.left += 1
            raise


async def test_an_answer_from_elsewhere_dismisses_who_is_asked() -> None:
    somebody = Somebody()
    async with Runtime(ScriptedExecutor(), ask_human=somebody) as runtime:
        asked = Asked(runtime)
        run = asked.start()
        asked.questions.answer((await asked.one()).id, "from elsewhere")
        assert await run.wait() == "from elsewhere"
        assert somebody.left == 1


@pytest.mark.parametrize(
    ("says", "error"), [(RuntimeError("gone"), RuntimeError), (42, ToolArgumentsError)]
)
async def test_what_who_is_asked_does_wrong_fails_the_program(says: Any, error: Any) -> None:
    somebody = Somebody()
    if isinstance(says, Exception):
        somebody.says.set_exception(says)
    else:
        somebody.says.set_result(says)
    async with Runtime(ScriptedExecutor(), ask_human=somebody) as runtime:
        asked = Asked(runtime)
        with pytest.raises(error):
            await asked.start().wait()
        assert asked.states == ["open", "withdrawn"]
