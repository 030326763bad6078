"""Questions on the terminal: what is shown, what is read, and a prompt that goes away."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console

from agentrt import Context, Runtime, program
from agentrt.cli.human import Human, answer_hint
from agentrt.cli.screen import Screen
from agentrt.errors import UsageError
from agentrt.interrupts.answers import answer_form
from tests.cli.conftest import Run
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mqtt.mosquitto import Mosquitto

CHOOSES = """
@program
async def chooses(ctx):
    colour = await ctx.human('Which?', choices=['red', 'blue'])
    return [colour, await ctx.human('How many?', schema=int)]
"""


class Order(BaseModel):
    drink: str


@program
async def orders(ctx: Context) -> str:
    order: Order = await ctx.human("Which drink?", schema=Order)
    return order.drink


@program
async def chooses(ctx: Context) -> Any:
    return await ctx.human("Which?", choices=["red", "blue"])


class Terminal:
    """A terminal: ``type`` is the keyboard, ``text`` the screen."""

    def __init__(self) -> None:
        self.keyboard, slave = os.openpty()
        self.source = os.fdopen(slave, "r")
        self.output = io.StringIO()
        self.screen = Screen(Console(file=self.output))

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    @property
    def text(self) -> str:
        return self.output.getvalue()

    async def shows(self, part: str) -> None:
        """Wait until the screen shows this."""
        async with asyncio.timeout(60):
            while part not in self.text:
                await asyncio.sleep(0)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    with terminal.source:
        yield terminal
    os.close(terminal.keyboard)


async def test_a_wrong_answer_is_asked_again_with_the_reason(terminal: Terminal) -> None:
    terminal.type('tea\n{"drink": "tea"}\n')
    human = Human((), terminal.screen, terminal.source)
    async with Runtime(ScriptedExecutor(), ask_human=human) as runtime:
        assert await runtime.start(orders).wait() == "tea"
    asked, schema, first, second = terminal.text.splitlines()
    assert asked == "orders-1 asks: Which drink?"
    assert '{"properties": {"drink"' in schema
    assert first == "> the answer does not fit: 'tea' is not of type 'object'"
    assert second == "> "


@pytest.mark.parametrize(("typed", "chosen"), [("2", "blue"), ("red", "red")])
async def test_choices_are_numbered(terminal: Terminal, typed: str, chosen: str) -> None:
    terminal.type(f"3\n{typed}\n")
    human = Human((), terminal.screen, terminal.source)
    async with Runtime(ScriptedExecutor(), ask_human=human) as runtime:
        assert await runtime.start(chooses).wait() == chosen
    assert terminal.text.startswith("chooses-1 asks: Which?\n  1 red\n  2 blue\n> ")
    assert "3 is not one of ['red', 'blue']" in terminal.text


async def test_questions_come_one_at_a_time_and_one_answered_elsewhere_goes(
    terminal: Terminal,
) -> None:
    """1. Two programs ask; one is on the terminal. 2. Somebody begins to type. 3. It is answered
    elsewhere: what was typed is dropped, and the other is asked.
    """
    human = Human((), terminal.screen, terminal.source)
    async with Runtime(ScriptedExecutor(), ask_human=human) as runtime:
        first, second = runtime.start(chooses), runtime.start(chooses)
        await terminal.shows("> ")
        assert "chooses-2" not in terminal.text
        terminal.type("bl")
        [question, _] = runtime.questions.open.values()
        runtime.questions.answer(question.id, "red")
        assert await first.wait() == "red"
        await terminal.shows("\nchooses-1: answered elsewhere\nchooses-2 asks: Which?")
        terminal.type("blue\n")
        assert await second.wait() == "blue"


async def test_without_a_terminal_it_waits_for_an_answer_from_elsewhere() -> None:
    screen = Screen(Console(file=io.StringIO()))
    human = Human((), screen, io.StringIO(), elsewhere="in the dashboard")
    async with Runtime(ScriptedExecutor(), ask_human=human) as runtime:
        run = runtime.start(chooses)
        async with asyncio.timeout(60):
            while not runtime.questions.open:
                await asyncio.sleep(0)
        [question] = runtime.questions.open
        runtime.questions.answer(question, "red")
        assert await run.wait() == "red"


async def test_nobody_to_ask_is_a_usage_error() -> None:
    human = Human((), Screen(Console(file=io.StringIO())), io.StringIO())
    async with Runtime(ScriptedExecutor(), ask_human=human) as runtime:
        with pytest.raises(UsageError, match="--human TEXT"):
            await runtime.start(chooses).wait()


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (answer_form(), ""),
        (answer_form({}), ""),
        (answer_form(str), ""),
        (answer_form(bool), "(yes or no)\n"),
        (answer_form(int), "(an integer)\n"),
        (
            answer_form({"type": "string", "maxLength": 2}),
            '(text that fits the schema {"type": "string", "maxLength": 2})\n',
        ),
        (answer_form(choices=[1, True, "x"]), "  1 1\n  2 true\n  3 x\n"),
    ],
)
def test_what_an_answer_must_be_is_said(form: Any, shown: str) -> None:
    assert answer_hint(form) == shown


# -- the command ----------------------------------------------------------------------------


def test_answers_in_advance_are_read_by_the_schema(run_program: Run) -> None:
    assert run_program(CHOOSES, "--human", "blue", "--human", "3").json == ["blue", 3]
    ran = run_program(CHOOSES, "--human", "blue", "--human", "many")
    wrong = "--human 'many': the answer does not fit: 'many' is not of type 'integer'"
    assert ran.code == 2
    assert ran.said.startswith(f"error: {wrong}; ")
    assert "chooses-1" in ran.said
    assert "'How many?'" in ran.said


def test_answers_that_nobody_asked_for_are_told_of(run_program: Run) -> None:
    answers = ("--human", "blue", "--human", "3")
    assert "not used" not in run_program(CHOOSES, *answers).err
    ran = run_program(CHOOSES, *answers, "--human", "4")
    assert "1 answer of --human was not used, because the programs asked fewer questions" in ran.err


# Asks a human, and answers at the broker as one would.
ANSWERS = """
import asyncio, json
import aiomqtt

@program
async def asks(ctx, port):
    asked = asyncio.create_task(ctx.human("Which drink?", choices=["tea", "coffee"]))
    async with aiomqtt.Client("127.0.0.1", int(port)) as client:
        await client.subscribe("agentrt/questions/+", 1)
        message = await anext(client.messages)
        payload = json.dumps({"answer": "tea"})
        assert json.loads(message.payload)["question"] == "Which drink?"
        await client.publish(f"{message.topic}/answers", payload, 1)
        return await asked
"""


def test_without_a_terminal_a_question_is_answered_at_the_broker(
    run_program: Run, tmp_path: Path
) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        url = f"mqtt://127.0.0.1:{mosquitto.port}"
        ran = run_program(ANSWERS, "--input", mosquitto.port, "--broker", url)
    assert f"asks-1 asks: Which drink? (answer at {url})" in ran.err
    assert ran.out == "tea\n"
