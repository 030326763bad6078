"""Questions to a human: answered by what was given in advance, or asked on the terminal.

A program asks in words, and gets words. A graph's questions have ids, and may get any value.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from agentrt.cli.screen import Screen
from agentrt.cli.values import read_value
from agentrt.errors import UsageError
from agentrt.interrupts.questions import Question

if TYPE_CHECKING:
    from langgraph.types import Interrupt


FLAG = "--interrupt-reply"
_ADDRESSED = re.compile(r"([0-9a-f]{32})=(.*)", re.DOTALL)
_LITERALS = {"true": True, "false": False, "null": None}


class UnansweredError(UsageError):
    """A program asked a human, and there was none."""


class Human:
    """The `AskHuman` of the command line.

    ``answers`` are given to each program in order. After them, or without any, the
    question is asked on the terminal if there is one; one question at a time.
    """

    def __init__(
        self, answers: Sequence[str], screen: Screen, source: TextIO | None = None
    ) -> None:
        self._answers = tuple(answers)
        self._given: dict[str, int] = {}
        self._screen = screen
        self._source = sys.stdin if source is None else source
        self._turn = asyncio.Lock()

    async def __call__(self, question: Question) -> Any:
        return question.form.parse(await self._answer(question.program_id, question.text))

    async def _answer(self, program_id: str, question: str) -> str:
        given = self._given.get(program_id, 0)
        self._given[program_id] = given + 1
        if given < len(self._answers):
            return self._answers[given]
        if not self.is_there:
            raise UnansweredError(
                f"program {program_id} asks {question!r} and there is nobody to answer: "
                "give --human TEXT once for each question, or run it on a terminal"
            )
        return await self.ask(program_id, question)

    @property
    def is_there(self) -> bool:
        """Whether there is a terminal to ask on."""
        return self._source.isatty()

    async def ask(self, who: str, question: str) -> str:
        """Ask on the terminal. Raises `UnansweredError` if it is closed."""
        async with self._turn:
            with self._screen.paused() as out:
                out.write(f"{who} asks: {question}\n> ")
                out.flush()
                return await self._read_line(who)

    async def _read_line(self, who: str) -> str:
        # A terminal is readable when a whole line is there, so no thread has to block; it is
        # read past Python's buffer, which could hide a line that was typed ahead.
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._source, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._source)
        line = os.read(self._source.fileno(), 1 << 16)
        if not line:
            raise UnansweredError(f"{who} got no answer: the input was closed")
        return line.decode(errors="replace").rstrip("\n")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, and the id of the question that it is for, if it was named."""

    value: Any
    to: str | None = None


def read_answer(text: str) -> Answer:
    """The value of ``--interrupt-reply``: ``[ID=]TEXT|JSON|@FILE``.

    As for ``--input``; true, false and null are what they are in JSON, since a text would
    count as a yes.
    """
    match = _ADDRESSED.fullmatch(text)
    to, text = (match[1], match[2]) if match else (None, text)
    value = _LITERALS[text] if text in _LITERALS else read_value(text, FLAG)
    return Answer(value, to)


def choose(
    answers: Sequence[Answer], questions: Sequence[Interrupt]
) -> tuple[dict[str, Any], Sequence[Answer]]:
    """Which of the first ``answers`` are for ``questions``, by id, and those that are left.

    One without an id is for the only question. Raises `UsageError` if it does not fit.
    """
    first, open_ids = answers[0], [question.id for question in questions]
    if first.to is None:
        if len(open_ids) > 1:
            raise UsageError(f"{FLAG}: {_listed(questions)}; say which one it is for: ID=…")
        return {open_ids[0]: first.value}, answers[1:]
    if first.to not in open_ids:
        raise UsageError(f"{FLAG} {first.to}=…: no such question is open; {_listed(questions)}")
    chosen: dict[str, Any] = {}
    for used, one in enumerate(answers):
        if one.to not in open_ids or one.to in chosen:
            return chosen, answers[used:]
        chosen[one.to] = one.value
    return chosen, ()


def _listed(questions: Sequence[Interrupt]) -> str:
    words = ", ".join(f"{one.id} ({as_line(one.value)})" for one in questions)
    return f"the open one is {words}" if len(questions) == 1 else f"several are open: {words}"


def as_line(value: Any, width: int = 60) -> str:
    """What is asked, in one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
