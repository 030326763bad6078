"""Questions to a human: answered by prepared answers, or asked on the terminal.

A program's question has a form that its answer must fit. A graph's questions have ids, and
their prepared answers may be any value.
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
    """The error of a program that asked a human when nobody could answer, or whose prepared answer
    does not fit the question.
    """


class Human:
    """The `Answerer` of the command line.

    Each program gets the prepared ``answers`` in order. A resumed program gets the answers that
    follow those of its recorded questions. Further questions are asked on the terminal, one at a
    time. ``elsewhere`` says in words where else a question can be answered, such as on the
    dashboard. Without a terminal, a question waits until it is answered at the place that
    ``elsewhere`` names. Without a terminal and with ``elsewhere`` "", the program fails.

    ``used`` is the largest number of prepared answers that a program has used.
    """

    def __init__(
        self,
        answers: Sequence[str],
        screen: Screen,
        source: TextIO | None = None,
        *,
        elsewhere: str = "",
    ) -> None:
        self.used = 0
        self._answers = tuple(map(typed, answers))
        self._screen = screen
        self._source = sys.stdin if source is None else source
        self._elsewhere = elsewhere
        self._turn = asyncio.Lock()

    async def __call__(self, question: Question) -> Any:
        program, form = question.program_id, question.form
        if question.earlier < len(self._answers):
            answer = self._answers[question.earlier]
            self.used = max(self.used, question.earlier + 1)
            value = form.parse(answer)
            if (wrong := _mistake(form, value)) is not None:
                raise UnansweredError(
                    f"--human {answer!r}: {wrong}; the question of {program} is {question.text!r}"
                )
            return value
        if self.is_there:
            return await self._ask(question)
        if self._elsewhere:
            self._screen.announce(f"{program} asks: {question.text} (answer {self._elsewhere})")
            await asyncio.get_running_loop().create_future()
        raise UnansweredError(
            f"run {program} asks {question.text!r}, but there is no terminal to answer on; add "
            "--human TEXT once for each question, or run the command on a terminal"
        )

    @property
    def is_there(self) -> bool:
        """Whether there is a terminal on which to ask."""
        return self._source.isatty()

    async def _ask(self, question: Question) -> Any:
        """Ask on the terminal, again and again until the answer has the required form. Raises
        `UnansweredError` if the terminal is closed.
        """
        program, form = question.program_id, question.form
        async with self._turn:
            with self._screen.paused() as out:
                out.write(f"{program} asks: {printable(question.text)}\n{answer_hint(form)}")
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
                termios.tcflush(self._source, termios.TCIFLUSH)  # discard a half-typed answer
                how = "answered elsewhere" if question.state == "answered" else "timed out"
                out.write(f"\n{question.program_id}: {how}\n")
            raise

    async def _read_line(self, program: str) -> str:
        # A terminal becomes readable when a whole line has been typed, so no thread needs to block.
        # Read from the descriptor: Python's buffer could hide a line that was typed early.
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(self._source, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._source)
        line = os.read(self._source.fileno(), 1 << 16)
        if not line:
            raise UnansweredError(f"{program} got no answer: the terminal's input was closed")
        return line.decode(errors="replace").rstrip("\n")


def answer_hint(form: AnswerForm) -> str:
    """Return lines that describe the required form of an answer, such as the choices with their
    numbers; "" if any text is accepted.
    """
    schema = form.schema
    if not schema:
        return ""
    if "enum" in schema:
        return "".join(f"  {n} {_plain(choice)}\n" for n, choice in enumerate(schema["enum"], 1))
    kind = schema.get("type")
    if schema.keys() <= {"type", "title"} and kind in _SIMPLE:
        return _SIMPLE[kind]
    noun = "text" if kind == "string" else "JSON"
    return f"({noun} that fits the schema {json.dumps(schema)})\n"


def read_choice(form: AnswerForm, text: str) -> Any:
    """Read a typed answer with `AnswerForm.parse`. The number of a choice stands for the choice."""
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
    """A prepared answer. ``to`` is the id of its question; None if the answer names no question."""

    value: Any
    to: str | None = None


def read_reply(text: str) -> InterruptReply:
    """Read the value of ``--human`` for a graph: ``[ID=]TEXT|JSON|@FILE``.

    The value is read as for ``--input``, except that true, false and null are JSON: as text,
    "false" would count as true in Python.
    """
    match = _ADDRESSED.fullmatch(text)
    to, text = (match[1], match[2]) if match else (None, text)
    value = _LITERALS[text] if text in _LITERALS else read_value(text, FLAG)
    return InterruptReply(value, to)


def choose(
    answers: Sequence[InterruptReply], questions: Sequence[Interrupt]
) -> tuple[dict[str, Any], Sequence[InterruptReply]]:
    """Match the first ``answers`` to ``questions``. Return the values by the questions' ids, and
    the answers that are left.

    An answer without an id matches only if a single question is open. Raises `UsageError` if the
    first answer matches no question.
    """
    first, open_ids = answers[0], [question.id for question in questions]
    if first.to is None:
        if len(open_ids) > 1:
            raise UsageError(
                f"{FLAG}: {_listed(questions)}; write the id before the answer, as in "
                f"{FLAG} {open_ids[0]}=TEXT"
            )
        return {open_ids[0]: first.value}, answers[1:]
    if first.to not in open_ids:
        raise UsageError(
            f"{FLAG} {first.to}=…: no question with this id is open; {_listed(questions)}"
        )
    chosen: dict[str, Any] = {}
    for used, reply in enumerate(answers):
        if reply.to not in open_ids or reply.to in chosen:
            return chosen, answers[used:]
        chosen[reply.to] = reply.value
    return chosen, ()


def _listed(questions: Sequence[Interrupt]) -> str:
    names = ", ".join(f"{each.id} ({short(str(each.value), 60)})" for each in questions)
    if len(questions) == 1:
        return f"the open question is {names}"
    return f"several questions are open: {names}"
