"""A server's list of questions to humans, from its programs and from other sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from agentrt.errors import QuestionClosedError
from agentrt.interrupts.answers import AnswerForm
from agentrt.interrupts.questions import Question
from agentrt.runtime import Runtime

if TYPE_CHECKING:
    from starlette.requests import Request

_MOST = 1000
"""Maximum number of questions that `ServerQuestions.listed` returns."""


@dataclass(frozen=True, slots=True)
class QuestionView:
    """A question in the form that the people who may answer it see.

    A program's question has the id of the ``run`` that waits. A graph's question has the id of
    the ``thread``, and the ``value`` with which the graph called `interrupt`. ``type`` is the name
    of the program or graph. Times are in seconds since 1970.
    """

    id: str
    text: str
    type: str
    tenant: str
    form: AnswerForm = field(default_factory=AnswerForm)
    run: str | None = None
    thread: str | None = None
    value: Any = None
    state: str = "open"
    created_at: float = 0.0
    expires_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the question as JSON for clients."""
        return {
            "id": self.id,
            "object": "question",
            "state": self.state,
            "question": self.text,
            "schema": self.form.schema,
            "type": self.type,
            "run": self.run,
            "program": self.run,  # its former name, which works until 0.4
            "thread": self.thread,
            "value": self.value,
            "tenant": self.tenant,
            "created_at": round(self.created_at, 3),
            "expires_at": None if self.expires_at is None else round(self.expires_at, 3),
        }


@dataclass(frozen=True, slots=True)
class Viewer:
    """A person who lists or answers questions: a tenant, or None for an operator, who sees all.

    ``request`` is the HTTP request of the person, if any.
    """

    tenant: str | None = None
    request: Request | None = None

    def sees(self, tenant: str) -> bool:
        """Return whether the person may see and answer the questions of a tenant."""
        return self.tenant is None or self.tenant == tenant


@dataclass(frozen=True, slots=True)
class QuestionFilter:
    """A selection of questions: the newest ``limit`` questions. If ``run`` is set, only questions
    of this run are selected, and if ``thread`` is set, only questions of this thread.
    """

    run: str | None = None
    thread: str | None = None
    limit: int = 100


class QuestionSource(Protocol):
    """A source of questions, such as the programs or the graphs of a server."""

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        """Return the open questions that the viewer may see, newest first."""

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        """Return an open or closed question; None if this source has no such question that the
        viewer may see.
        """

    async def answer(self, viewer: Viewer, question: QuestionView, value: Any) -> Mapping[str, Any]:
        """Answer a question. Return additional fields for the HTTP response to the answer.

        Raises `ToolArgumentsError` for an answer that does not match the question's schema, and
        `QuestionClosedError` if the question is not open any more. If the answer starts a run, also
        raises the errors of this start, such as `BusyError`.
        """


class ProgramQuestions:
    """A `QuestionSource` of the questions of a runtime's programs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        views = [
            self.seen(question)
            for question in reversed(self._runtime.questions.open.values())
            if viewer.sees(question.tenant) and wanted.run in (None, question.program_id)
        ]
        return [] if wanted.thread is not None else views[: wanted.limit]

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        questions = self._runtime.questions
        question = questions.open.get(question_id) or questions.closed.get(question_id)
        return (
            self.seen(question) if question is not None and viewer.sees(question.tenant) else None
        )

    async def answer(self, viewer: Viewer, question: QuestionView, value: Any) -> Mapping[str, Any]:
        self._runtime.questions.answer(question.id, value)
        return {}

    def seen(self, question: Question) -> QuestionView:
        """Convert a question of the runtime to the form that people see."""
        time_of_day, until = self._runtime.steady.time_of_day, question.expires_at
        return QuestionView(
            question.id,
            question.text,
            question.program_type,
            question.tenant,
            question.form,
            run=question.program_id,
            state=question.state,
            created_at=time_of_day(question.created_at),
            expires_at=None if until is None else time_of_day(until),
        )


class ServerQuestions:
    """All questions of a server.

    ``changes`` counts how often a question opened or closed, and ``watchers`` are called after each
    such change. The server's other APIs add their ``sources``, and call `changed`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.of_programs = ProgramQuestions(runtime)
        self.sources: list[QuestionSource] = [self.of_programs]
        self.changes = 0
        self.watchers: set[Callable[[], None]] = set()
        runtime.questions.listen(lambda question: self.changed())

    def changed(self) -> None:
        """Record that a question opened or closed, and call the watchers."""
        self.changes += 1
        for watcher in tuple(self.watchers):
            watcher()

    async def listed(self) -> list[dict[str, Any]]:
        """Return the open questions of all tenants as JSON for clients, newest first, at most
        `_MOST`.
        """
        return [
            question.to_json()
            for question in await self.open(Viewer(), QuestionFilter(limit=_MOST))
        ]

    async def answer_of(self, tenant: str, question_id: str, value: Any) -> dict[str, Any]:
        """Answer a question on behalf of a tenant.

        Raises the errors of `answer`, and `QuestionClosedError` for an unknown question.
        """
        done = await self.answer(Viewer(tenant), question_id, value)
        if done is None:
            raise QuestionClosedError(f"unknown question {question_id}")
        return done

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        """Return the open questions that the viewer may see, newest first."""
        # While a parked program is being resumed, two sources have its questions.
        questions: dict[str, QuestionView] = {}
        for source in self.sources:
            questions |= {question.id: question for question in await source.open(viewer, wanted)}
        return sorted(questions.values(), key=lambda question: question.created_at, reverse=True)[
            : wanted.limit
        ]

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        """Return an open or closed question; None if the question is unknown or the viewer may not
        see it.
        """
        return (await self._find(viewer, question_id))[1]

    async def answer(self, viewer: Viewer, question_id: str, value: Any) -> dict[str, Any] | None:
        """Answer a question, and return the response as JSON; None for an unknown question.

        Raises as `QuestionSource.answer` does.
        """
        source, question = await self._find(viewer, question_id)
        if source is None or question is None:
            return None
        if question.state != "open":
            is_expired = question.state == "expired"
            why = "it has expired" if is_expired else f"it was {question.state} already"
            raise QuestionClosedError(f"question {question_id} is not open any more: {why}")
        source_fields = await source.answer(viewer, question, value)
        return {"id": question.id, "object": "question", "state": "answered", **source_fields}

    async def _find(
        self, viewer: Viewer, question_id: str
    ) -> tuple[QuestionSource | None, QuestionView | None]:
        for source in self.sources:
            if (question := await source.find(viewer, question_id)) is not None:
                return source, question
        return None, None
