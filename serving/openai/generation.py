"""Chats, completions, models: the part of OpenAI's API that any client knows."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.serving.openai.answers import (
    ChatEvents,
    CompletionEvents,
    Head,
    chat_answer,
    completion_answer,
)
from agentrt.serving.openai.request_handler import Ask, RequestHandler
from agentrt.serving.openai.requests import ChatRequest, CompletionRequest, Sampling
from agentrt.serving.openai.specs import chat_specs, completion_specs
from agentrt.serving.programs.errors import ApiError


def add_generation(router: APIRouter, handler: RequestHandler) -> None:
    """Add the routes."""
    began = int(time.time())

    @router.post("/chat/completions", response_model=None)
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """A chat's next message, by a model that is served; as events with ``stream``."""
        return await handler.answer(request, _ask_chat(handler, request, body))

    @router.post("/completions", response_model=None)
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        """What follows a prompt."""
        return await handler.answer(request, _ask_completion(handler, request, body))

    @router.get("/models", response_model=None)
    async def list_models() -> Response:
        """The models that are served."""
        return JSONResponse({"object": "list", "data": [_model(n, began) for n in names]})

    @router.get("/models/{model:path}", response_model=None)
    async def retrieve_model(model: str) -> Response:
        """One of them."""
        return JSONResponse(_model(handler.model(model), began))

    names = handler.server.models


def _model(name: str, began: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": began, "owned_by": "agentrt"}


def _ask_chat(handler: RequestHandler, request: Request, body: ChatRequest) -> Ask:
    specs, with_usage = chat_specs(body), _with_usage(body)
    may_call = bool(specs[0].tools) and specs[0].tool_choice != "none"
    in_form = may_call and not handler.native_tools
    kind = "chat.completion.chunk" if body.stream else "chat.completion"
    head = Head(
        f"chatcmpl-{request.state.request_id}",
        int(time.time()),
        handler.model(body.model),
        kind,
        in_form,
    )
    asked = bool(body.logprobs)
    return Ask(
        specs=specs,
        chat=specs[0].messages or (),
        session_id=body.session_id,
        in_form=in_form,
        whole=lambda replies: chat_answer(head, replies, asked),
        events=ChatEvents(head, asked, with_usage) if body.stream else None,
    )


def _ask_completion(handler: RequestHandler, request: Request, body: CompletionRequest) -> Ask:
    specs, with_usage = completion_specs(body), _with_usage(body)
    prompts = len(specs) // (body.n or 1)
    name = f"cmpl-{request.state.request_id}"
    head = Head(name, int(time.time()), handler.model(body.model), "text_completion")
    return Ask(
        specs=specs,
        chat=(),
        session_id=body.session_id,
        in_form=False,
        whole=lambda replies: completion_answer(head, replies, prompts),
        events=CompletionEvents(head, prompts, with_usage) if body.stream else None,
    )


def _with_usage(body: Sampling) -> bool:
    if body.stream_options is None:
        return False
    if not body.stream:
        raise ApiError(400, "stream_options: it needs stream", param="stream_options")
    return body.stream_options.include_usage
