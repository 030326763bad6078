"""What a command starts: programs with their inputs, and what follows each one's end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentrt.cli.human import Human
from agentrt.program import Program
from agentrt.runtime.run import Run
from agentrt.runtime.runtime import AskHuman


@dataclass(frozen=True, slots=True)
class Start:
    """A program to start, with what `Runtime.start` takes; ``session`` names its thread."""

    program: Program
    input: Any = None
    session: str | None = None
    terms: Mapping[str, Any] = field(default_factory=dict)


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
    """The programs of a command: these ``starts``, which nothing follows.

    ``questions`` are those that nobody was there to answer. ``resumes`` has, by the ids of
    runs that came to no end, the commands that go on where they were.
    """

    def __init__(self, starts: Sequence[Start] = ()) -> None:
        self.questions: list[OpenQuestion] = []
        self.resumes: dict[str, str] = {}
        self._starts = starts

    @asynccontextmanager
    async def opened(self, human: Human, ask: AskHuman) -> AsyncIterator[Sequence[Start]]:
        """What to start first, checked, on the loop that it is to run on. It may be nothing.

        A plan's own questions go to ``ask``, if ``human`` is there.
        """
        yield self._starts

    async def after(self, start: Start, run: Run) -> Start | None:
        """What goes on where ``run`` has ended."""
        return None

    def drain(self) -> None:
        """Nothing goes on any more, and no human is asked: questions are left open."""
