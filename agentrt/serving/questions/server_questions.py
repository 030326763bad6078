"""The questions of a server: those of its programs, and those of other sources, as one list."""

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
"""Questions that are listed at once."""


@dataclass(frozen=True, slots=True)
class QuestionView:
    """A question as those see it who may answer. Times are seconds since 1970.

    One of a program has the ``program`` that waits, one of a graph the ``thread`` and the
    ``value`` that its `interrupt` was called with; ``type`` is the name of either.
    """

    id: str
    text: str
    type: str
    tenant: str
    form: AnswerForm = field(default_factory=AnswerForm)
    program: str | None = None
    thread: str | None = None
    value: Any = None
    state: str = "open"
    created_at: float = 0.0
    expires_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As clients get it."""
        return {
            "id": self.id,
            "object": "question",
            "state": self.state,
            "question": self.text,
            "schema": self.form.schema,
            "type": self.type,
            "program": self.program,
            "thread": self.thread,
            "value": self.value,
            "tenant": self.tenant,
            "created_at": round(self.created_at, 3),
            "expires_at": None if self.expires_at is None else round(self.expires_at, 3),
        }


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks for questions, or answers: a tenant, or with None the operator, who sees all.

    ``request`` is theirs, where it came over HTTP.
    """

    tenant: str | None = None
    request: Request | None = None

    def sees(self, tenant: str) -> bool:
        """Whether they may see, and answer, what is asked in this tenant's name."""
        return self.tenant is None or self.tenant == tenant


@dataclass(frozen=True, slots=True)
class QuestionFilter:
    """Which questions: of one program, or one thread; the latest ``limit`` of them."""

    program: str | None = None
    thread: str | None = None
    limit: int = 100


class QuestionSource(Protocol):
    """Somebody who asks."""

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        """What is open, the latest first."""

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        """A question of this source that the viewer may see, open or closed."""

    async def answer(self, viewer: Viewer, asked: QuestionView, value: Any) -> Mapping[str, Any]:
        """Answer. The response to the answer has what this returns.

        Raises `ToolArgumentsError` for an answer that does not fit, and `QuestionClosedError`.
        """


class ProgramQuestions:
    """The questions of a runtime's programs."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        found = [
            self.seen(one)
            for one in reversed(self._runtime.questions.open.values())
            if viewer.sees(one.tenant) and wanted.program in (None, one.program_id)
        ]
        return [] if wanted.thread is not None else found[: wanted.limit]

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        questions = self._runtime.questions
        found = questions.open.get(question_id) or questions.closed.get(question_id)
        return self.seen(found) if found is not None and viewer.sees(found.tenant) else None

    async def answer(self, viewer: Viewer, asked: QuestionView, value: Any) -> Mapping[str, Any]:
        self._runtime.questions.answer(asked.id, value)
        return {}

    def seen(self, question: Question) -> QuestionView:
        """A question of the runtime as people see it."""
        time_of_day, until = self._runtime.steady.time_of_day, question.expires_at
        return QuestionView(
            question.id,
            question.text,
            question.program_type,
            question.tenant,
            question.form,
            program=question.program_id,
            state=question.state,
            created_at=time_of_day(question.created_at),
            expires_at=None if until is None else time_of_day(until),
        )


class ServerQuestions:
    """All questions. ``changes`` counts what opened and closed, ``watchers`` are called for each.

    The server's other APIs add their ``sources``, and say when there is a change.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.of_programs = ProgramQuestions(runtime)
        self.sources: list[QuestionSource] = [self.of_programs]
        self.changes = 0
        self.watchers: set[Callable[[], None]] = set()
        runtime.questions.listen(lambda question: self.changed())

    def changed(self) -> None:
        """Some question opened, or was closed."""
        self.changes += 1
        for watcher in tuple(self.watchers):
            watcher()

    async def listed(self) -> list[dict[str, Any]]:
        """What is open in all tenants, as clients get it."""
        return [one.to_json() for one in await self.open(Viewer(), QuestionFilter(limit=_MOST))]

    async def answer_of(self, tenant: str, question_id: str, value: Any) -> dict[str, Any]:
        """Answer in a tenant's name. Raises as `answer` does, and `QuestionClosedError` for a
        question that there is not.
        """
        done = await self.answer(Viewer(tenant), question_id, value)
        if done is None:
            raise QuestionClosedError(f"there is no question {question_id}")
        return done

    async def open(self, viewer: Viewer, wanted: QuestionFilter) -> list[QuestionView]:
        """What is open, the latest first."""
        # Two sources may have one whose program is coming back.
        found: dict[str, QuestionView] = {}
        for source in self.sources:
            found |= {one.id: one for one in await source.open(viewer, wanted)}
        return sorted(found.values(), key=lambda one: one.created_at, reverse=True)[: wanted.limit]

    async def find(self, viewer: Viewer, question_id: str) -> QuestionView | None:
        """The question, if the viewer may see it; it may be closed."""
        return (await self._find(viewer, question_id))[1]

    async def answer(self, viewer: Viewer, question_id: str, value: Any) -> dict[str, Any] | None:
        """Answer; what came of it as JSON, None for a question that there is not.

        Raises `ToolArgumentsError` for an answer that does not fit, and `QuestionClosedError`.
        """
        source, asked = await self._find(viewer, question_id)
        if source is None or asked is None:
            return None
        if asked.state != "open":
            raise QuestionClosedError(f"question {question_id} was {asked.state} already")
        more = await source.answer(viewer, asked, value)
        return {"id": asked.id, "object": "question", "state": "answered", **more}

    async def _find(
        self, viewer: Viewer, question_id: str
    ) -> tuple[QuestionSource | None, QuestionView | None]:
        for source in self.sources:
            if (asked := await source.find(viewer, question_id)) is not None:
                return source, asked
        return None, None
