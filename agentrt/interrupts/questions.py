"""What humans are asked: one list of open questions, and the first answer to each counts."""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrt.errors import InterruptExpiredError, QuestionClosedError, UsageError
from agentrt.interrupts.answers import AnswerForm
from agentrt.steady import SteadyClock

_KEPT = 1000
"""Closed questions that are remembered, so that a late answer learns why it is late."""

QuestionState = Literal["open", "answered", "expired", "withdrawn"]


@dataclass(slots=True, eq=False)
class Question:
    """A question of a program. ``created_at`` and ``expires_at`` are times of the clock by which
    its program waits.
    """

    text: str
    program_id: str = ""
    program_type: str = ""
    tenant: str = "default"
    form: AnswerForm = field(default_factory=AnswerForm)
    created_at: float = 0.0
    expires_at: float | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: QuestionState = "open"


Listener = Callable[[Question], None]
Answerer = Callable[[Question], Awaitable[Any]]
"""Asks somebody; what it returns, as JSON, is the answer, unless another one came first."""


async def no_human(question: Question) -> Any:
    """An `Answerer`: there is nobody to ask."""
    raise UsageError(
        f"program {question.program_id} asks a human, and there is none here: {question.text!r}. "
        "Run it on a terminal, give the answer in advance, or make the runtime with ask_human="
    )


class Questions:
    """The questions of one runtime, by id: the open ones, and the last that were closed.

    All methods belong to the runtime's event loop. Programs wait by the ``clock``.
    """

    def __init__(self, clock: SteadyClock, answerer: Answerer | None = None) -> None:
        self.open: dict[str, Question] = {}
        self.closed: OrderedDict[str, Question] = OrderedDict()
        self.clock = clock
        self._answerer = answerer
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of each question that opens, and again when it is closed: its state
        says how. It must be quick and not raise.
        """
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Tell ``listener`` no more."""
        self._listeners.remove(listener)

    async def ask(self, question: Question, *, timeout: float | None = None) -> Any:
        """The first answer, as the program gets it. Cancelling the task withdraws the question.

        Raises `InterruptExpiredError` past ``timeout`` (seconds), and what the answerer raises.
        """
        question.created_at = self.clock.now()
        question.expires_at = None if timeout is None else question.created_at + timeout
        answered = asyncio.get_running_loop().create_future()
        self.open[question.id], self._answers[question.id] = question, answered
        self._tell(question)
        asking = self._ask_somebody(question)
        try:
            if not await self.clock.wait(answered, timeout):
                self._close(question, "expired")
                message = f"nobody answered within {timeout:g} s: {question.text!r}"
                raise InterruptExpiredError(message)
            return answered.result()
        finally:
            if self.open.get(question.id) is question:
                self._close(question, "withdrawn")
            if asking is not None:
                asking.cancel()
                await asyncio.wait({asking})

    def answer(self, question_id: str, value: Any) -> None:
        """Answer an open question. Raises `QuestionClosedError` if it is not open any more, and
        `ToolArgumentsError` for an answer that does not fit.
        """
        question = self.open.get(question_id)
        if question is None:
            closed = self.closed.get(question_id)
            why = "is not known here" if closed is None else f"was {closed.state} already"
            raise QuestionClosedError(f"question {question_id} {why}")
        accepted = question.form.accept(value)
        answered = self._answers[question_id]
        self._close(question, "answered")
        answered.set_result(accepted)

    def set_aside(self, question_id: str) -> None:
        """Somebody else has an open question from now on: its program is parked. Nobody is told."""
        del self.open[question_id], self._answers[question_id]

    def _ask_somebody(self, question: Question) -> asyncio.Future[Any] | None:
        if self._answerer is None:
            return None
        answered = self._answers[question.id]

        def hand_on(asked: asyncio.Future[Any]) -> None:
            error = None if asked.cancelled() else asked.exception()
            if asked.cancelled() or question.state != "open":
                return
            try:
                if error is not None:
                    raise error
                self.answer(question.id, asked.result())
            except Exception as wrong:
                self._close(question, "withdrawn")
                answered.set_exception(wrong)

        asking = asyncio.ensure_future(self._answerer(question))
        asking.add_done_callback(hand_on)
        return asking

    def _close(self, question: Question, state: QuestionState) -> None:
        question.state = state
        del self.open[question.id], self._answers[question.id]
        self.closed[question.id] = question
        while len(self.closed) > _KEPT:
            self.closed.popitem(last=False)
        self._tell(question)

    def _tell(self, question: Question) -> None:
        for listener in tuple(self._listeners):
            listener(question)
