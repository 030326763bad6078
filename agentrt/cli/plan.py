"""The plan of a command: the programs that the command starts, and the program that follows a
program that has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

from agentrt.cli.human import Human
from agentrt.interrupts.questions import Answerer
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run


@dataclass(frozen=True, slots=True)
class Start:
    """A program to start, with the arguments of `Runtime.start`.

    ``session`` is the id of a graph's thread. ``terms`` are further keyword arguments.
    ``durable`` says how the program is recorded if there is a journal.
    """

    program: Program
    input: Any = None
    session: str | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)
    durable: Durable = field(default_factory=Durable)


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question to a human that is still open: its thread, and the command that answers it.

    ``id`` and ``value`` are the id and the value of LangGraph's interrupt; a breakpoint has no id.
    ``program`` is the id of the program that asked; None if an earlier command ran this program.
    """

    program: str | None
    thread: str
    id: str | None
    value: Any
    answer_with: str


class Plan:
    """A plan that runs the programs ``starts``. No program follows another, except in subclasses.

    ``count`` is the number of these programs. ``answers`` are the prepared answers to the questions
    of each program. ``questions`` are the questions that nobody answered. ``resumes`` maps the ids
    of runs that did not finish to the commands that resume them. ``is_cut_short`` says that
    programs did not start, because the plan was drained. ``continues`` says that the programs
    continue the work of an earlier command, which may have made all of their calls.
    """

    continues: bool = False

    def __init__(self, starts: Iterable[Start] = (), answers: Sequence[str] = ()) -> None:
        self.count = length_hint(starts)
        self.answers = answers
        self.questions: list[OpenQuestion] = []
        self.resumes: dict[str, str] = {}
        self.is_cut_short = False
        self._draining = False
        self._all = starts

    @asynccontextmanager
    async def opened(
        self, human: Human, ask: Answerer
    ) -> AsyncIterator[AsyncGenerator[Start, None]]:
        """Open an iterator over the programs to start, during the ``with`` block. The iterator may
        be empty.

        Each start is made and checked when the iterator yields it, on the event loop that runs the
        program. Questions of a graph's thread go to ``ask`` if there is a ``human`` who can answer.
        """
        async with aclosing(self._each()) as starts:
            yield starts

    async def _each(self) -> AsyncGenerator[Start, None]:
        for start in self._all:
            if not self.may_start():
                return
            yield start

    def may_start(self) -> bool:
        """Return whether another program may start. If not, the plan is cut short."""
        self.is_cut_short |= self._draining
        return not self._draining

    def started(self, start: Start) -> None:
        """Note that a run of ``start`` begins. The starts are taken before the engine is loaded."""

    async def after(self, start: Start, run: Run) -> Start | None:
        """Return the program that follows the ended ``run``; None if no program follows."""
        return None

    def unused_answers(self, human: Human) -> int:
        """Return how many of the prepared answers no program has used. ``human`` has given the
        answers to the programs' questions.
        """
        return max(0, len(self.answers) - human.used)

    def unfinished(self) -> list[tuple[str, str]]:
        """Return the thread of each program that has started and not finished, with the command
        that resumes it. A program that only its journal can resume has no command of its own.
        """
        return []

    def drain(self) -> None:
        """Start and resume no more programs, and leave questions to humans open."""
        self._draining = True
