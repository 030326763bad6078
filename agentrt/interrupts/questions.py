"""What humans are asked: one list of open questions, and the first answer to each counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrt.errors import (
    ConfigError,
    InterruptExpiredError,
    QuestionClosedError,
    ToolArgumentsError,
)
from agentrt.interrupts.schema import mistake_in

UNANSWERED: Any = object()
"""In place of a default: there is none."""


@dataclass(slots=True, eq=False)
class Question:
    """An open question of a program. ``schema`` is what its answer must fit; None: a text.

    ``at`` and ``deadline`` are seconds on the runtime's clock.
    """

    text: str
    program_id: str = ""
    program_type: str = ""
    tenant: str = "default"
    schema: Mapping[str, Any] | None = None
    at: float = 0.0
    deadline: float | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    answered: asyncio.Future[Any] = field(default_factory=asyncio.Future, repr=False)

    def read(self, text: str) -> Any:
        """An answer that was typed: itself, or JSON where the schema wants no text.

        Raises `ToolArgumentsError` for one that does not fit.
        """
        value: Any = text
        if self.schema is not None and mistake_in(text, self.schema) is not None:
            with contextlib.suppress(ValueError):
                value = json.loads(text)
        return self.checked(value)

    def checked(self, value: Any) -> Any:
        """The answer. Raises `ToolArgumentsError` for one that does not fit."""
        schema: Mapping[str, Any] = {"type": "string"} if self.schema is None else self.schema
        if (wrong := mistake_in(value, schema)) is not None:
            raise ToolArgumentsError(f"this is no answer to {self.text!r}: {wrong}")
        return value


Listener = Callable[[Question], None]
Answerer = Callable[[Question], Awaitable[Any]]
"""Asks somebody; what it returns is the answer, unless another one came first."""


class Questions:
    """The open questions of one runtime, by id. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float], answerer: Answerer | None = None) -> None:
        self.open: dict[str, Question] = {}
        self._clock = clock
        self._answerer = answerer
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Tell ``listener`` of each question that opens, and again when it is closed."""
        self._listeners.append(listener)

    async def ask(
        self, question: Question, *, timeout: float | None = None, default: Any = UNANSWERED
    ) -> Any:
        """The first answer. Past ``timeout`` (seconds) it is ``default``.

        Raises `InterruptExpiredError` if there is no default, and what the answerer raises.
        """
        question.at = self._clock()
        question.deadline = None if timeout is None else question.at + timeout
        self.open[question.id] = question
        self._tell(question)
        asking = None
        if self._answerer is not None:
            asking = asyncio.ensure_future(self._answerer(question))
            asking.add_done_callback(lambda task: _hand_on(task, question.answered))
        try:
            async with asyncio.timeout(timeout):
                return await question.answered
        except TimeoutError as error:
            if default is not UNANSWERED:
                return default
            message = f"nobody answered within {timeout:g} s: {question.text!r}"
            raise InterruptExpiredError(message) from error
        finally:
            self.open.pop(question.id, None)
            if asking is not None:
                asking.cancel()
                await asyncio.wait({asking})
            self._tell(question)

    def answer(self, question_id: str, value: Any) -> None:
        """Answer an open question. Raises `QuestionClosedError` if it is not open any more, and
        `ToolArgumentsError` for an answer that does not fit.
        """
        question = self.open.get(question_id)
        if question is None or question.answered.done():
            raise QuestionClosedError(f"question {question_id} is not open (any more)")
        question.answered.set_result(question.checked(value))

    def _tell(self, question: Question) -> None:
        for listener in tuple(self._listeners):
            listener(question)


def _hand_on(asked: asyncio.Future[Any], answered: asyncio.Future[Any]) -> None:
    """Give what one future came to to another, unless that has a result."""
    if asked.cancelled() or answered.done():
        return
    if (error := asked.exception()) is not None:
        answered.set_exception(error)
    else:
        answered.set_result(asked.result())


def answer_form(
    schema: Mapping[str, Any] | type | None, choices: Sequence[str] = ()
) -> tuple[Mapping[str, Any] | None, Callable[[Any], Any]]:
    """The JSON schema of an answer, and what makes of an answer what the program gets.

    Raises `ConfigError` for both a schema and choices.
    """
    if choices:
        if schema is not None:
            raise ConfigError("a question has either a schema or choices")
        return {"type": "string", "enum": list(choices)}, _as_is
    if schema is None or isinstance(schema, Mapping):
        return schema, _as_is
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(schema)
    return adapter.json_schema(), adapter.validate_python


def _as_is(value: Any) -> Any:
    return value
