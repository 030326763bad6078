"""vLLM's front end: its parser of flags, its application, and how a prompt is rendered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrt.executors.chat_api import CALLER, FIELDS

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI
    from fastapi.routing import APIRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

_NOT_NEEDED = ("PrometheusInstrumentatorMiddleware", "CORSMiddleware", "ScalingMiddleware")
"""Middleware of vLLM's: nobody is shown what it measures, the server in front has the rules for web
pages, and its engines do not grow.
"""
_PARSED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
    *("/v1/messages/count_tokens", "/v1/messages/render"),
)
"""Routes whose bodies the server in front has parsed, and may have changed."""
_MESSAGES = "vllm.entrypoints.anthropic.api_router"
_MERGES = "vllm.entrypoints.anthropic.serving"
_LIMIT = "get_max_tokens"
_LIMITING = tuple(
    f"vllm.entrypoints.openai.{name}.serving"
    for name in ("chat_completion", "completion", "responses")
)
_TEMPLATES = ("vllm.renderers.hf", "vllm.renderers.mistral")


def make_arg_parser(parser: Any) -> Any:
    """The parser of `vllm serve`'s flags."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser as make  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser as make  # 0.33
    return make(parser)


async def make_app(
    client: Any, args: Namespace, tasks: tuple[Any, ...], *, alone: bool = False
) -> FastAPI:
    """vLLM's application on an engine client, with its state.

    It stands behind a server of ours, and has none of what costs every request and is not needed
    there. ``alone`` is as `vllm serve` has it.
    """
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    app = build_app(args, tasks, client.model_config)
    if not alone:
        own = app.user_middleware
        own[:] = [one for one in own if getattr(one.cls, "__name__", "") not in _NOT_NEEDED]
        app.middleware_stack = None  # made at the first request
        calls = [
            one
            for one in app.router.routes
            if getattr(one, "path", "") in _PARSED and getattr(one, "body_field", None) is not None
        ]  # rendering alone is off unless a flag says so
        for route in calls:  # none where the model only pools
            route.app = _with_fields(route)
        app.router.routes[:] = [*calls, *(one for one in app.router.routes if one not in calls)]
    _tell_limits()
    await init_app_state(client, app.state, args, tasks)
    logging.getLogger(_MESSAGES).addFilter(_is_no_refusal)
    return app


def _tell_limits() -> None:
    """Tell callers of limits that vLLM cuts down to what their prompts leave.

    All APIs of vLLM's ask one function for it, before their answers begin.
    """
    for name in _LIMITING:
        module = import_module(name)
        limit = getattr(module, _LIMIT, None)
        if limit is not None and not hasattr(limit, "__wrapped__"):
            setattr(module, _LIMIT, _telling(limit))


def _telling(limit: Callable[..., int]) -> Callable[..., int]:
    @wraps(limit)
    def told(max_model_len: int, max_tokens: int | None, *args: Any, **options: Any) -> int:
        most = limit(max_model_len, max_tokens, *args, **options)
        if max_tokens is not None and most < max_tokens and (who := CALLER.get()) is not None:
            who.limited(most)
        return most

    return told


def _with_fields(route: APIRoute) -> ASGIApp:
    """A route of one body, which is not parsed again where the scope has its `FIELDS`."""
    from fastapi.exceptions import RequestValidationError
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import request_response

    body, endpoint, whole = route.body_field, route.endpoint, route.app
    assert body is not None

    async def answer(request: Request) -> Response:
        fields = request.scope[FIELDS]
        value, errors = body.validate(fields, {}, loc=("body",))
        if errors:
            raise RequestValidationError(errors, body=fields)
        return await endpoint(value, request) or JSONResponse(None)

    parsed = request_response(answer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (parsed if FIELDS in scope else whole)(scope, receive, send)

    return app


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Whether a record of the Messages API is none of a request that is answered with 4xx.

    Each prompt that is too long would leave a traceback of 60 lines; the other APIs log nothing.
    """
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, Exception) or create_error_response(error).error.code >= 500


def keep_system_messages(state: Any) -> None:
    """Keep the Messages API from moving system messages to the front of a chat."""
    messages = getattr(state, "anthropic_serving_messages", None)
    if messages is not None:
        messages._merge_inline_system = False


def _is_no_merge(record: logging.LogRecord) -> bool:
    """Whether a record is not vLLM's warning that it moves system messages to the front."""
    return not str(record.msg).startswith("The chat template requires system-first")


@contextlib.contextmanager
def unmerged_quietly() -> Iterator[None]:
    """Drop vLLM's warning that the Messages API moves system messages, which is then not true."""
    logger = logging.getLogger(_MERGES)
    logger.addFilter(_is_no_merge)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_merge)


@contextlib.contextmanager
def quiet_templates() -> Iterator[None]:
    """Drop vLLM's warnings of templates that refuse messages, while they are probed."""
    loggers = [logging.getLogger(name) for name in _TEMPLATES]
    for logger in loggers:
        logger.addFilter(_nothing)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


def template_of(renderer: Any, params: Any) -> str | None:
    """The chat template that a renderer renders ``params`` with; None where code renders chats."""
    from vllm.renderers.hf import HfRenderer, resolve_chat_template

    if not isinstance(renderer, HfRenderer):
        return None
    template: str | None = resolve_chat_template(
        renderer.get_tokenizer(),
        params.chat_template,
        params.chat_template_kwargs.get("tools"),
        model_config=renderer.model_config,
    )
    return template


def prompt_text(prompt: Mapping[str, Any], tokenizer: Callable[[], Any]) -> str:
    """The text of a rendered prompt, which may be token ids already."""
    text = prompt.get("prompt")
    if isinstance(text, str):
        return text
    return str(tokenizer().decode(prompt["prompt_token_ids"]))


def make_renderer(vllm_config: Any) -> tuple[Any, Any]:
    """A renderer of one's own for a model, and the processor of its engine's inputs."""
    from vllm.renderers import renderer_from_config
    from vllm.v1.engine.input_processor import InputProcessor

    renderer = renderer_from_config(vllm_config)
    return renderer, InputProcessor(vllm_config, renderer)


def chat_template_of(config: Any, given: str | None) -> str | None:
    """The chat template that a model's chats go by: the user's file, or its tokenizer's."""
    from vllm.renderers.chat_utils import load_chat_template
    from vllm.tokenizers.registry import cached_tokenizer_from_config

    if given is not None:
        loaded: str | None = load_chat_template(given)
        return loaded
    template = getattr(cached_tokenizer_from_config(config.model_config), "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template


def known_parsers() -> tuple[list[str], list[str]]:
    """The names of vLLM's tool parsers and of its reasoning parsers."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools = ToolParserManager.list_registered()
    return list(tools), list(ReasoningParserManager.list_registered())


def load_plugins(given: Mapping[str, Any]) -> None:
    """Load the user's own parsers, as `vllm serve` does."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    if plugin := given.get("tool_parser_plugin"):
        ToolParserManager.import_tool_parser(plugin)
    if plugin := given.get("reasoning_parser_plugin"):
        ReasoningParserManager.import_reasoning_parser(plugin)


async def render_prompt(renderer: Any, model_config: Any, prompt: Any) -> Any:
    """A raw prompt (text or token ids) as an engine takes it."""
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    parsed = parse_model_prompt(model_config, prompt)
    (rendered,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
    return rendered


def render_elsewhere(vllm_config: Any) -> None:
    """Tell an engine, before it starts, that its prompts are rendered in front of several.

    A renderer of its one engine would leave out images that it has sent before. That one of
    several replicas got them says nothing of the others: here they come whole, and only what
    was made of them is remembered in front.
    """
    if vllm_config.model_config.supports_multimodal_inputs:
        vllm_config.parallel_config._api_process_count = 2
