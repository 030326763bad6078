"""What a command starts: programs with their inputs, and what follows each one's end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrt.cli.human import Human
from agentrt.interrupts.questions import Answerer
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run


@dataclass(frozen=True, slots=True)
class Start:
    """A program to start, with what `Runtime.start` takes; ``session`` names its thread, and
    ``durable`` says how it is recorded, if there is a journal.
    """

    program: Program
    input: Any = None
    session: str | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)
    durable: Durable = field(default_factory=Durable)


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question to a human that was left open: in which thread, and the command that answers.

    ``id`` and ``value`` are those of LangGraph's interrupt; a breakpoint has no id.
    ``program`` is the one that asked, None if that was before this command.
    """

    program: str | None
    thread: str
    id: str | None
    value: Any
    answer_with: str


class Plan:
    """The programs of a command: ``starts``; nothing follows them.

    ``questions`` are those that nobody was there to answer. ``resumes`` has, by the ids of
    runs that came to no end, the commands that go on where they were.
    """

    def __init__(self, starts: Iterable[Start] = ()) -> None:
        self.questions: list[OpenQuestion] = []
        self.resumes: dict[str, str] = {}
        self._draining = False
        self._all = starts

    @asynccontextmanager
    async def opened(
        self, human: Human, ask: Answerer
    ) -> AsyncIterator[AsyncGenerator[Start, None]]:
        """What to start, one after another, each made and checked when it is asked for, on the
        loop that it is to run on. It may be nothing.

        A plan's own questions go to ``ask``, if ``human`` is there.
        """
        async with aclosing(self._each()) as starts:
            yield starts

    async def _each(self) -> AsyncGenerator[Start, None]:
        for start in self._all:
            if self._draining:
                return
            yield start

    async def after(self, start: Start, run: Run) -> Start | None:
        """What goes on where ``run`` has ended."""
        return None

    def drain(self) -> None:
        """Nothing starts or goes on any more, and no human is asked: questions are left open."""
        self._draining = True
