"""Questions to a human: answered by what was given in advance, or asked on the terminal.

A program's question says what its answer must be. A graph's questions have ids, and may get any
value.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import termios
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, TextIO

from agentrt.cli.screen import Screen
from agentrt.cli.streams import printable, typed
from agentrt.cli.values import read_value
from agentrt.errors import ToolArgumentsError, UsageError
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.questions import Question
from agentrt.journal.analysis.rendering import short

if TYPE_CHECKING:
    from langgraph.types import Interrupt


FLAG = "--human"
_ADDRESSED = re.compile(r"([0-9a-f]{32})=(.*)", re.DOTALL)
_SIMPLE = {
    "string": "",
    "boolean": "(yes or no)\n",
    "integer": "(an integer)\n",
    "number": "(a number)\n",
}
_LITERALS = {"true": True, "false": False, "null": None}


class UnansweredError(UsageError):
    """A program asked a human, and there was none."""


class Human:
    """The `Answerer` of the command line.

    ``answers`` are given to each program in order. After them, or without any, the question is
    asked on the terminal; one question at a time. Without a terminal it waits if others may
    answer ``elsewhere``, which says where.
    """

    def __init__(
        self,
        answers: Sequence[str],
        screen: Screen,
        source: TextIO | None = None,
        *,
        elsewhere: str = "",
    ) -> None:
        self._answers = tuple(map(typed, answers))
        self._given: dict[str, int] = {}
        self._screen = screen
        self._source = sys.stdin if source is None else source
        self._elsewhere = elsewhere
        self._turn = asyncio.Lock()

    async def __call__(self, question: Question) -> Any:
        who, form = question.program_id, question.form
        given = self._given.get(who, 0)
        self._given[who] = given + 1
        if given < len(self._answers):
            value = form.parse(self._answers[given])
            if (wrong := _mistake(form, value)) is not None:
                raise UnansweredError(
                    f"--human {self._answers[given]!r}: {wrong}; {who} asks {question.text!r}"
                )
            return value
        if self.is_there:
            return await self._ask(question)
        if self._elsewhere:
            self._screen.announce(f"{who} asks: {question.text} (answer {self._elsewhere})")
            await asyncio.get_running_loop().create_future()
        raise UnansweredError(
            f"program {who} asks {question.text!r} and there is nobody to answer: "
            "give --human TEXT once for each question, or run it on a terminal"
        )

    @property
    def is_there(self) -> bool:
        """Whether there is a terminal to ask on."""
        return self._source.isatty()

    async def _ask(self, question: Question) -> Any:
        """Ask on the terminal until the answer fits. Raises `UnansweredError` if it is closed."""
        who, form = question.program_id, question.form
        async with self._turn:
            with self._screen.paused() as out:
                out.write(f"{who} asks: {printable(question.text)}\n{asked_for(form)}")
                while True:
                    out.write("> ")
                    out.flush()
                    value = read_choice(form, await self._line_for(question, out))
                    if (wrong := _mistake(form, value)) is None:
                        return value
                    out.write(f"{wrong}\n")

    async def _line_for(self, question: Question, out: IO[str]) -> str:
        try:
            return await self._read_line(question.program_id)
        except asyncio.CancelledError:
            if question.state in ("answered", "expired"):
                termios.tcflush(self._source, termios.TCIFLUSH)  # what was typed so far
                how = "answered elsewhere" if question.state == "answered" else "too late"
                out.write(f"\n{question.program_id}: {how}\n")
            raise

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


def asked_for(form: AnswerForm) -> str:
    """What an answer must be, in lines: choices with their numbers; nothing if any text will do."""
    schema = form.schema
    if not schema:
        return ""
    if "enum" in schema:
        return "".join(f"  {n} {_plain(one)}\n" for n, one in enumerate(schema["enum"], 1))
    kind = schema.get("type")
    if schema.keys() <= {"type", "title"} and kind in _SIMPLE:
        return _SIMPLE[kind]
    what = "A text" if kind == "string" else "JSON"
    return f"({what} that fits {json.dumps(schema)})\n"


def read_choice(form: AnswerForm, text: str) -> Any:
    """What was typed, as `AnswerForm.parse` reads it; a choice's number is that choice."""
    value, choices = form.parse(text), (form.schema or {}).get("enum", ())
    if value not in choices and text.isdecimal() and 0 < int(text) <= len(choices):
        return choices[int(text) - 1]
    return value


def _plain(value: Any) -> str:
    return printable(value) if isinstance(value, str) else json.dumps(value)


def _mistake(form: AnswerForm, value: Any) -> str | None:
    try:
        form.accept(value)
    except ToolArgumentsError as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class InterruptReply:
    """What was answered, and the id of the question that it is for, if it was named."""

    value: Any
    to: str | None = None


def read_reply(text: str) -> InterruptReply:
    """The value of ``--human`` for a graph: ``[ID=]TEXT|JSON|@FILE``.

    As for ``--input``; true, false and null are what they are in JSON, since a text would
    count as a yes.
    """
    match = _ADDRESSED.fullmatch(text)
    to, text = (match[1], match[2]) if match else (None, text)
    value = _LITERALS[text] if text in _LITERALS else read_value(text, FLAG)
    return InterruptReply(value, to)


def choose(
    answers: Sequence[InterruptReply], questions: Sequence[Interrupt]
) -> tuple[dict[str, Any], Sequence[InterruptReply]]:
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
    words = ", ".join(f"{one.id} ({short(str(one.value), 60)})" for one in questions)
    return f"the open one is {words}" if len(questions) == 1 else f"several are open: {words}"
