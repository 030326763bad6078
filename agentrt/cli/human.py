"""Answers a program's questions: with what was given in advance, or by asking on the terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import IO, Protocol, TextIO

from agentrt.errors import UsageError


class Pausable(Protocol):
    """A display that can give the terminal away for a while."""

    def paused(self) -> AbstractContextManager[IO[str]]: ...


class UnansweredError(UsageError):
    """A program asked a human, and there was none."""


class Human:
    """The `AskHuman` of the command line.

    ``answers`` are given to each program in order. After them, or without any, the
    question is asked on the terminal if there is one; one question at a time.
    """

    def __init__(
        self, answers: Sequence[str], screen: Pausable, source: TextIO | None = None
    ) -> None:
        self._answers = tuple(answers)
        self._given: dict[str, int] = {}
        self._screen = screen
        self._source = sys.stdin if source is None else source
        self._turn = asyncio.Lock()

    async def __call__(self, program_id: str, question: str) -> str:
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
