"""A transport that does what it is told, and an observer that writes down what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentrt.interrupts import Progress, ToolContext, ToolRequest, ToolTransport

Answer = Any | BaseException | Callable[[ToolRequest, ToolContext], Awaitable[Any]]


class Scripted(ToolTransport):
    """Gives these answers in turn: a value, an error to raise, or a function to await."""

    def __init__(self, *answers: Answer, name: str = "scripted") -> None:
        self.name = name
        self.answers = list(answers)
        self.requests: list[ToolRequest] = []
        self.cancelled = 0
        self.live = 0
        self.most = 0

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            if isinstance(answer, BaseException):
                raise answer
            return await answer(request, context) if callable(answer) else answer
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.live -= 1


async def never(request: ToolRequest, context: ToolContext) -> Any:
    await asyncio.Event().wait()


class Observing:
    """What an observer was told, in order."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def waits(self, why: str) -> None:
        self.heard.append(why)

    def starts(self, attempt: int) -> None:
        self.heard.append(attempt)

    def progress(self, progress: Progress) -> None:
        self.heard.append(progress)

    async def ask(self, question: str, schema: Mapping[str, Any] | None = None) -> Any:
        self.heard.append((question, schema))
        return "yes"
