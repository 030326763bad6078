"""The open questions of a runtime to humans. The first answer to a question counts."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from agentrt.errors import ConfigError, InterruptExpiredError, QuestionClosedError, UsageError
from agentrt.interrupts.answers import AnswerForm
from agentrt.steady import SteadyClock

_KEPT = 1000
"""Number of closed questions that are kept, so that the error for a late answer can say how the
question was closed.
"""

QuestionState = Literal["open", "answered", "expired", "withdrawn"]


@dataclass(slots=True, eq=False)
class Question:
    """A question of a program.

    ``earlier`` is the number of questions that the program asked before, also before it was
    resumed. For a fork, the questions of the run from which it was made do not count.
    ``created_at`` and ``expires_at`` are seconds on the clock of `Questions`.
    """

    text: str
    program_id: str = ""
    program_type: str = ""
    tenant: str = "default"
    form: AnswerForm = field(default_factory=AnswerForm)
    earlier: int = 0
    created_at: float = 0.0
    expires_at: float | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: QuestionState = "open"


Listener = Callable[[Question], None]
Answerer = Callable[[Question], Awaitable[Any]]
"""A function that asks a human, and returns the answer as a JSON value. `Questions.answer` may
answer the question earlier.
"""


async def no_human(question: Question) -> Any:
    """Refuse a question by raising `UsageError`. This is the `Answerer` of a runtime without
    humans.
    """
    raise UsageError(
        f"run {question.program_id} asks a human, but nobody can answer: {question.text!r}; create "
        "the runtime with ask_human=, or run the program with 'agentrt run' on a terminal or with "
        "--human TEXT"
    )


class Questions:
    """The questions of a runtime by id: the open questions, and the last closed questions.

    All methods must be called from the runtime's event loop. Timeouts are measured by ``clock``.
    """

    def __init__(self, clock: SteadyClock, answerer: Answerer | None = None) -> None:
        self.open: dict[str, Question] = {}
        self.closed: OrderedDict[str, Question] = OrderedDict()
        self.clock = clock
        self._answerer = answerer
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each question when it is opened, and again when it is closed.

        The question's state says how it was closed. The listener must be fast and must not raise.
        """
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling ``listener``."""
        self._listeners.remove(listener)

    async def ask(self, question: Question, *, timeout: float | None = None) -> Any:
        """Ask a question, and return the first answer in the form that the program gets.

        Cancelling the calling task withdraws the question. Raises `InterruptExpiredError` after
        ``timeout`` seconds, the errors of the answerer, `ConfigError` if the answerer is not an
        async function, and `ToolArgumentsError` if it returns an answer that is not valid.
        """
        question.created_at = self.clock.now()
        question.expires_at = None if timeout is None else question.created_at + timeout
        answered = asyncio.get_running_loop().create_future()
        self.open[question.id], self._answers[question.id] = question, answered
        self._tell(question)
        asking: asyncio.Future[Any] | None = None
        try:
            asking = self._start_answerer(question)
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
        """Answer an open question.

        Raises `QuestionClosedError` if the question is unknown or closed, and `ToolArgumentsError`
        for an answer that is not valid. After an invalid answer, the question stays open.
        """
        question = self.open.get(question_id)
        if question is None:
            closed = self.closed.get(question_id)
            why = "is unknown" if closed is None else f"is closed; its state is {closed.state!r}"
            raise QuestionClosedError(f"question {question_id} {why}")
        accepted = question.form.accept(value)
        answered = self._answers[question_id]
        self._close(question, "answered")
        answered.set_result(accepted)

    def set_aside(self, question_id: str) -> None:
        """Remove an open question, because its program is parked. Listeners are not called."""
        del self.open[question_id], self._answers[question_id]

    def _start_answerer(self, question: Question) -> asyncio.Future[Any] | None:
        if self._answerer is None:
            return None
        answered = self._answers[question.id]

        def hand_on(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if done.cancelled() or question.state != "open":
                return
            try:
                if error is not None:
                    raise error
                self.answer(question.id, done.result())
            except Exception as wrong:
                self._close(question, "withdrawn")
                answered.set_exception(wrong)

        coming: object = self._answerer(question)
        if not inspect.isawaitable(coming):
            raise ConfigError(
                f"the answerer (ask_human=) returned {coming!r:.80}; it must be an async function, "
                "such as async def answer(question)"
            )
        asking = asyncio.ensure_future(coming)
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
