"""Tools at a worker ask humans through their caller, in the name of its program.

The worker says what a tool asks in a reply, again with each other one until it is answered; the
caller asks, and gives each answer as often as it is asked for it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from agentrt.errors import QuestionClosedError, ToolArgumentsError
from agentrt.integrations.mqtt.jobs import Job
from agentrt.integrations.mqtt.messages import Failure, ToolAnswer, ToolQuestion, encode
from agentrt.interrupts import ToolContext

Say = Callable[[Job, Literal["asks", "withdrawn"], ToolQuestion], None]
"""Sends a reply with a question."""


@dataclass(slots=True, eq=False)
class _Open:
    job: Job
    question: ToolQuestion
    answered: asyncio.Future[Any] = field(default_factory=asyncio.Future)


class Asking:
    """What the tools of one worker ask, and wait for."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._open: dict[str, _Open] = {}

    async def ask(self, job: Job, text: str, schema: Mapping[str, Any] | None) -> Any:
        """The answer. Raises a `ToolError` where there is none."""
        if job.ended_at is not None:
            raise QuestionClosedError("the tool's call is over")
        form = None if schema is None else dict(schema)
        one = _Open(job, ToolQuestion(id=uuid.uuid4().hex, text=text, schema=form))
        self._say(job, "asks", one.question)
        self._open[one.question.id] = one
        try:
            return await one.answered
        except asyncio.CancelledError:
            self._say(job, "withdrawn", ToolQuestion(id=one.question.id))
            raise
        finally:
            del self._open[one.question.id]

    def repeat(self, job: Job) -> None:
        """Ask again: what was asked, or answered, may be lost."""
        for one in self._open.values():
            if one.job is job:
                self._say(job, "asks", one.question)

    def close(self, job: Job) -> None:
        """The job is over: whoever asks on, in a thread that was left behind, gets no answer."""
        for one in self._open.values():
            if one.job is job and not one.answered.done():
                one.answered.set_exception(QuestionClosedError("the tool's call is over"))

    def take(self, given: ToolAnswer) -> None:
        """The first answer counts, and none to what is not asked any more."""
        one = self._open.get(given.question)
        if one is None or one.answered.done():
            return
        if given.error is not None:
            one.answered.set_exception(given.error.error(one.job.request.tool))
        else:
            one.answered.set_result(given.answer)


class Asked:
    """What the worker of one call asks; ``give`` sends an answer's message to that worker."""

    def __init__(self, context: ToolContext, give: Callable[[str, bytes], None]) -> None:
        self._context, self._give = context, give
        self._answers: dict[str, asyncio.Task[bytes]] = {}

    def hear(self, worker: str, question: ToolQuestion, *, asks: bool) -> None:
        """Ask a human, or give the answer again; or the tool does not wait for it any more."""
        answer = self._answers.get(question.id)
        if answer is None and asks:
            answer = asyncio.create_task(self._answer(question))
            self._answers[question.id] = answer
            answer.add_done_callback(partial(self._hand_on, worker))
        elif answer is not None and not asks:
            answer.cancel()
        elif answer is not None and answer.done():
            self._hand_on(worker, answer)

    async def close(self) -> None:
        """Withdraw all questions."""
        for answer in self._answers.values():
            answer.cancel()
        if self._answers:
            await asyncio.wait(self._answers.values())

    def _hand_on(self, worker: str, answer: asyncio.Task[bytes]) -> None:
        if not answer.cancelled():
            self._give(worker, answer.result())

    async def _answer(self, question: ToolQuestion) -> bytes:
        try:
            answer = await self._context.ask(question.text, question.form)
        except Exception as error:
            return encode(ToolAnswer(question=question.id, error=Failure.of(error)))
        try:
            return encode(ToolAnswer(question=question.id, answer=answer))
        except ValueError as error:
            large = ToolArgumentsError(f"the answer cannot be sent: {error}")
            return encode(ToolAnswer(question=question.id, error=Failure.of(large)))
