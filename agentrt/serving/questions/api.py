"""The HTTP routes of questions to humans: list open questions, get a question, answer it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from agentrt.errors import QuestionClosedError, ToolArgumentsError
from agentrt.serving.error_responses import ApiError, OpenAIRoute
from agentrt.serving.langgraph.responses import JSON
from agentrt.serving.middleware import tenant_of
from agentrt.serving.questions.server_questions import QuestionFilter, Viewer
from agentrt.serving.server import Server

_MOST_BYTES = 1024 * 1024
"""The maximum size of an answer (bytes)."""
_MOST_LISTED = 1000

Id = Annotated[str | None, Query(max_length=300)]


@asynccontextmanager
async def api(server: Server) -> AsyncIterator[APIRouter]:
    """Yield the router of the server's questions."""
    router = APIRouter(prefix="/v1", route_class=OpenAIRoute, tags=["questions"])
    questions = server.questions

    @router.get("/questions", response_model=None)
    async def list_questions(
        request: Request,
        run: Id = None,
        program: Annotated[Id, Query(deprecated=True)] = None,
        thread: Id = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_LISTED)] = 100,
    ) -> Response:
        """List the open questions of runs and of graphs' threads, newest first.

        ``program`` is the former name of ``run``.
        """
        open_questions = await questions.open(
            _viewer(request), QuestionFilter(run or program, thread, limit)
        )
        return JSON({"object": "list", "data": [question.to_json() for question in open_questions]})

    @router.get("/questions/{question_id}", response_model=None)
    async def retrieve_question(request: Request, question_id: str) -> Response:
        """Return a question and its state.

        A program's question can be retrieved for a while after it was closed.
        """
        question = await questions.find(_viewer(request), question_id)
        if question is None:
            raise _unknown(question_id)
        return JSON(question.to_json())

    @router.post("/questions/{question_id}", response_model=None)
    async def answer_question(request: Request, question_id: str) -> Response:
        """Answer a question. The body is ``{"answer": …}``, or the answer itself as JSON.

        Only the first answer counts; a later answer gets status 409. An answer that does not match
        the question's schema gets status 422, and the question stays open.
        """
        value = await _answer_in(request)
        try:
            done = await questions.answer(_viewer(request), question_id, value)
        except ToolArgumentsError as error:
            raise ApiError(422, str(error), param="answer", code="invalid_answer") from error
        except QuestionClosedError as error:
            raise ApiError(409, str(error), code="question_closed") from error
        if done is None:
            raise _unknown(question_id)
        return JSON(done)

    yield router


def _viewer(request: Request) -> Viewer:
    return Viewer(None if request.state.operator else tenant_of(request), request)


def _unknown(question_id: str) -> ApiError:
    return ApiError(404, f"unknown question {question_id[:100]!r}", code="not_found")


async def _answer_in(request: Request) -> Any:
    if len(await request.body()) > _MOST_BYTES:
        text = f"the answer is too large; send at most {_MOST_BYTES} bytes"
        raise ApiError(413, text, code="body_too_large")
    body = await request.json()
    return body["answer"] if isinstance(body, dict) and body.keys() == {"answer"} else body
