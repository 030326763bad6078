"""vLLM's API server: its flags, its HTTP application, renderers, chat templates and parsers; the
rendering and formatting of chats without vLLM's engine client; and responses in the background.

This module does not import vLLM when it is imported, because the flags are read before vLLM is
needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import BaseModel

from agentrt.errors import ConfigError, text_of
from agentrt.executors.chat_api import CALLER, FIELDS, GONE

if TYPE_CHECKING:
    from argparse import Namespace

    from fastapi import FastAPI
    from fastapi.routing import APIRoute
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_NOT_NEEDED = (
    *("PrometheusInstrumentatorMiddleware", "CORSMiddleware", "ScalingMiddleware"),
    *("AuthenticationMiddleware", "XRequestIdMiddleware"),
)
"""vLLM's middleware that is removed. Its measurements are not published, and vLLM does not change
the number of its engines here. The CORS rules, the API keys and the header with a request's id are
those of agentrt's server in front.
"""
_PARSED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
    *("/v1/messages/count_tokens", "/v1/messages/render"),
)
"""Routes whose bodies the server in front has already parsed, and may have changed."""
_MESSAGES = "vllm.entrypoints.anthropic.api_router"
_MERGES = "vllm.entrypoints.anthropic.serving"
_LIMIT = "get_max_tokens"
_LIMITING = tuple(
    f"vllm.entrypoints.openai.{name}.serving"
    for name in ("chat_completion", "completion", "responses")
)
_TEMPLATES = ("vllm.renderers.hf", "vllm.renderers.mistral")

# -- flags and the application --------------------------------------------------------------


def make_arg_parser(parser: Any) -> Any:
    """Add the flags of `vllm serve` to ``parser``, and return it."""
    try:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser as make  # 0.32
    except ImportError:
        from vllm.entrypoints.common.cli_args import make_arg_parser as make  # 0.33
    return make(parser)


async def make_app(
    client: Any, args: Namespace, tasks: tuple[Any, ...], *, alone: bool = False
) -> FastAPI:
    """Return vLLM's HTTP application, with its state initialized. It makes its calls through
    ``client``, an engine client.

    The application runs behind agentrt's server, so middleware that is not needed there is removed.
    With ``alone``, no middleware is removed, as in `vllm serve`.
    """
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    app = build_app(args, tasks, client.model_config)
    if not alone:
        own = app.user_middleware
        own[:] = [item for item in own if getattr(item.cls, "__name__", "") not in _NOT_NEEDED]
        app.middleware_stack = None  # Starlette builds it at the first request
        # Some of these routes may not exist: routes that only render need a flag, and a pooling
        # model has no chats.
        calls = [
            route
            for route in app.router.routes
            if getattr(route, "path", "") in _PARSED
            and getattr(route, "body_field", None) is not None
        ]
        for route in calls:
            route.app = _with_fields(route)
        others = [route for route in app.router.routes if route not in calls]
        app.router.routes[:] = [*calls, *others]
        # vLLM counts its load in its own watch for disconnected clients.
        if not own and not getattr(args, "enable_server_load_tracking", False):
            app.middleware_stack = _shortened(app, calls)
    _report_limits()
    await init_app_state(client, app.state, args, tasks)
    logging.getLogger(_MESSAGES).addFilter(_is_no_refusal)
    return app


def _report_limits() -> None:
    """Make vLLM report to the `Caller` when it lowers ``max_tokens`` because the prompt leaves less
    room.

    All of vLLM's APIs call the same function for this limit before their answers begin. This
    function is wrapped.
    """
    for name in _LIMITING:
        module = import_module(name)
        limit = getattr(module, _LIMIT, None)
        if limit is not None and not hasattr(limit, "__wrapped__"):
            setattr(module, _LIMIT, _reporting(limit))


def _reporting(limit: Callable[..., int]) -> Callable[..., int]:
    @wraps(limit)
    def reporting(max_model_len: int, max_tokens: int | None, *args: Any, **options: Any) -> int:
        most = limit(max_model_len, max_tokens, *args, **options)
        if max_tokens is not None and most < max_tokens and (caller := CALLER.get()) is not None:
            caller.limited(most)
        return most

    return reporting


def _with_fields(route: APIRoute) -> ASGIApp:
    """Return an ASGI application for ``route`` that takes the parsed body from the scope.

    The body is under the key `FIELDS`. If the scope has no such key, the route parses its body
    itself.
    """
    from starlette.responses import JSONResponse
    from starlette.routing import request_response

    validate, endpoint, whole = _validator(route), route.endpoint, route.app

    async def answer(request: Request) -> Response:
        if _FAILED in request.scope:
            raise request.scope[_FAILED]
        response: Response | None = await endpoint(validate(request.scope[FIELDS]), request)
        # If the client is gone, vLLM returns None (0.32) or a response with an empty body (0.33).
        if response is None or not getattr(response, "body", "streamed"):
            return JSONResponse(None)
        return response

    parsed = request_response(answer)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (parsed if FIELDS in scope else whole)(scope, receive, send)

    return app


def _validator(route: APIRoute) -> Callable[[Any], Any]:
    """Return a function that returns the request of ``route`` for a parsed body. The function
    raises `RequestValidationError` for a body that vLLM refuses.
    """
    from fastapi.exceptions import RequestValidationError

    body = route.body_field
    assert body is not None

    def validate(fields: Any) -> Any:
        try:
            value, errors = body.validate(fields, {}, loc=("body",))
        except _UNREAD as error:  # vLLM's own checks expect that some fields have the right type
            errors = [_wrong_type(body, fields, error)]
        if errors:
            raise RequestValidationError(errors, body=fields)
        return value

    return validate


_FAILED = "agentrt.failed"
"""The key of an ASGI scope for the error that an endpoint has raised."""


def _shortened(app: FastAPI, routes: Iterable[APIRoute]) -> ASGIApp:
    """Return the application of ``app`` with a shorter way to ``routes`` for requests whose scope
    has the parsed body.

    Starlette's layers for errors, routing and disconnected clients, and vLLM's watch for these
    clients, call about 70 functions for each call, and 10 for each streamed token. If an endpoint
    raises an error, the request takes the long way after all, on which Starlette answers the error.
    """
    from starlette.requests import Request
    from starlette.responses import JSONResponse, StreamingResponse

    whole = app.build_middleware_stack()
    ways = {route.path: (_validator(route), _unwatched(route.endpoint)) for route in routes}

    async def stack(scope: Scope, receive: Receive, send: Send) -> None:
        way = ways.get(scope["path"]) if FIELDS in scope else None
        if way is None:
            await whole(scope, receive, send)
            return
        validate, endpoint = way
        response: Response | None = None
        with _ClientTasks(scope, receive) as tasks:
            try:
                # Not in a task: the middleware limits the time that large bodies take here.
                value = validate(scope[FIELDS])
                response = await tasks.run(endpoint(value, Request(scope, receive, send)))
                if isinstance(response, StreamingResponse):
                    # In a task of its own, because each token wakes the functions of its task.
                    await tasks.run(response.stream_response(send))
                    return
            except asyncio.CancelledError:
                if not tasks.is_gone:
                    raise
                if response is not None:
                    return
                response = JSONResponse(None)
            except Exception as error:
                if response is not None:
                    raise
                scope[_FAILED] = error
        await (whole if response is None else response)(scope, receive, send)

    return stack


def _unwatched(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    """Return a route's function without vLLM's watch for the client's disconnection."""
    is_watched = endpoint.__code__.co_qualname.startswith("with_cancellation.")
    return getattr(endpoint, "__wrapped__", endpoint) if is_watched else endpoint


class _ClientTasks:
    """The tasks of a request, one after another, which are cancelled when the client disconnects.

    ``is_gone`` is True if the client has disconnected, and nothing else has cancelled the request.
    """

    __slots__ = ("_gone", "_is_own", "_request", "_running")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        gone: asyncio.Future[None] | None = scope.get(GONE)
        self._is_own = gone is None  # the server is not agentrt's
        self._gone = asyncio.ensure_future(_disconnected(receive)) if gone is None else gone
        self._request = asyncio.current_task()
        self._running: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        self._gone.add_done_callback(self._cancel)
        return self

    def __exit__(self, *error: object) -> None:
        self._gone.remove_done_callback(self._cancel)
        if self._is_own:
            self._gone.cancel()

    def _cancel(self, gone: asyncio.Future[None]) -> None:
        if self._running is not None:
            self._running.cancel()

    @property
    def is_gone(self) -> bool:
        return self._gone.done() and not self._is_cancelled()

    def _is_cancelled(self) -> bool:
        return self._request is not None and self._request.cancelling() > 0

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``. Raises `CancelledError` if the client has disconnected, or
        the request was cancelled, even if the work has ended with a result.
        """
        self._running = asyncio.create_task(work)
        result = await self._running
        if self._gone.done() or self._is_cancelled():
            raise asyncio.CancelledError
        return result


async def _disconnected(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


_UNREAD = (AttributeError, TypeError, KeyError, IndexError)


def _wrong_type(body: Any, fields: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    """Return the validation error for the field with which the check of a body fails.

    ``error`` is the error that the check raised. The field is the first field without which the
    check raises no such error.
    """

    def is_read(name: str) -> bool:
        try:
            body.validate({n: v for n, v in fields.items() if n != name}, {}, loc=("body",))
        except _UNREAD:
            return False
        return True

    place = [name for name in fields if is_read(name)][:1]
    text = f"a value of a wrong type ({error})"
    return {"type": "type_error", "loc": ("body", *place), "msg": text, "input": None}


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """Return False for a log record of the Messages API about a request that is answered with 4xx.

    Otherwise each prompt that is too long would leave a traceback of 60 lines. vLLM's other APIs
    log nothing for such requests.
    """
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, Exception) or create_error_response(error).error.code >= 500


def accept_name(state: Any, name: str) -> None:
    """Let requests call the model by ``name``, too, which is not among the names of `/v1/models`.

    ``state`` is the state of vLLM's application.
    """
    registry = state.openai_serving_models.registry
    is_base_model = registry.is_base_model
    registry.is_base_model = lambda model_name: model_name == name or is_base_model(model_name)


# -- the Messages API ------------------------------------------------------------------------


def keep_system_messages(state: Any) -> None:
    """Keep the Messages API from moving system messages to the front of a chat."""
    messages = getattr(state, "anthropic_serving_messages", None)
    if messages is not None:
        messages._merge_inline_system = False


def _is_no_merge(record: logging.LogRecord) -> bool:
    """Return False for vLLM's warning that it moves system messages to the front."""
    return not str(record.msg).startswith("The chat template requires system-first")


@contextlib.contextmanager
def unmerged_quietly() -> Iterator[None]:
    """Drop vLLM's warning that the Messages API moves system messages.

    The warning is wrong after `keep_system_messages`.
    """
    logger = logging.getLogger(_MERGES)
    logger.addFilter(_is_no_merge)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_merge)


# -- responses in the background -------------------------------------------------------------


class _FailedEvent(BaseModel):
    """The last event of a response that has failed."""

    type: str = "response.failed"
    sequence_number: int
    response: Any


def end_in_background(state: Any) -> None:
    """Make vLLM's Responses API end the events of each response that it generates in the
    background: it adds None after a response's last event, and readers of the events stop at None.
    ``state`` is the state of vLLM's application.

    vLLM leaves a response whose call has failed in the state ``queued``. A reader of a response's
    events waits for ever if the response fails or is cancelled, or if the reader has all events
    already.
    """
    responses = getattr(state, "openai_serving_responses", None)
    if responses is None:
        return

    def ending(generate: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        async def generate_to_the_end(request: Any, *args: Any, **options: Any) -> None:
            try:
                await generate(request, *args, **options)
            except Exception as error:
                _fail(responses, request.request_id, error)
            finally:
                _put_event(responses, request.request_id, None)

        return generate_to_the_end

    responses._run_background_request = ending(responses._run_background_request)
    responses._run_background_request_stream = ending(responses._run_background_request_stream)
    follow: Callable[..., AsyncGenerator[Any, None]] = (
        responses.responses_background_stream_generator
    )

    async def follow_to_the_end(
        response_id: str, starting_after: int | None = None
    ) -> AsyncGenerator[Any, None]:
        events, _ = responses.event_store.get(response_id, ((), None))
        if starting_after is not None and events and events[-1] is None:
            starting_after = min(starting_after, len(events) - 2)
        async with contextlib.aclosing(follow(response_id, starting_after)) as followed:
            async for event in followed:
                if event is None:
                    return
                yield event

    responses.responses_background_stream_generator = follow_to_the_end


def _fail(responses: Any, response_id: str, error: Exception) -> None:
    """Record that a response has failed."""
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    text = create_error_response(error).error.message
    _LOG.warning("response %s failed in the background: %s", response_id, text)
    response = responses.response_store.get(response_id)
    if response is None:  # it was dropped, because its tenant has too many responses
        return
    response.status, response.error = "failed", {"code": "server_error", "message": text}
    events, _ = responses.event_store.get(response_id, ((), None))
    number = events[-1].sequence_number + 1 if events else 0
    _put_event(responses, response_id, _FailedEvent(sequence_number=number, response=response))


def _put_event(responses: Any, response_id: str, event: _FailedEvent | None) -> None:
    """Give an event to the readers of a response, if it was requested as a stream."""
    events, is_new = responses.event_store.get(response_id, ((), None))
    if is_new is not None:
        events.append(event)
        is_new.set()


# -- renderers, templates and parsers --------------------------------------------------------


@contextlib.contextmanager
def quiet_templates() -> Iterator[None]:
    """Drop vLLM's warnings about templates that refuse messages, while templates are probed."""
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
    """Return the chat template that a renderer uses for ``params``.

    The result is None if the renderer does not use a template, but renders chats in code.
    """
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
    """Return the text of a rendered prompt, decoded if the prompt is token ids."""
    text = prompt.get("prompt")
    if isinstance(text, str):
        return text
    return str(tokenizer().decode(prompt["prompt_token_ids"]))


def make_renderer(vllm_config: Any) -> tuple[Any, Any]:
    """Return a new renderer for a model, and an input processor that uses it."""
    from vllm.renderers import renderer_from_config
    from vllm.v1.engine.input_processor import InputProcessor

    renderer = renderer_from_config(vllm_config)
    return renderer, InputProcessor(vllm_config, renderer)


def chat_template_of(config: Any, user_template: str | None) -> str | None:
    """Return the chat template of a model: ``user_template``, or else the template of its
    tokenizer; None if there is none.

    ``user_template`` is a file or the template itself, as ``--chat-template`` takes it. Raises
    `ConfigError` for a file that cannot be read.
    """
    from vllm.exceptions import VLLMError
    from vllm.renderers.chat_utils import load_chat_template
    from vllm.tokenizers.registry import cached_tokenizer_from_config

    if user_template is not None:
        try:
            loaded: str | None = load_chat_template(user_template)
        except (VLLMError, UnicodeDecodeError) as error:
            reason = getattr(error.__cause__, "strerror", None) or error
            raise ConfigError(
                f"--chat-template {user_template}: {str(reason).lower()}; name a text file with a "
                "chat template, or give the template itself"
            ) from error
        return loaded
    template = getattr(cached_tokenizer_from_config(config.model_config), "chat_template", None)
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template


def known_parsers() -> tuple[list[str], list[str]]:
    """Return the names of vLLM's tool parsers and of its reasoning parsers."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    tools = ToolParserManager.list_registered()
    return list(tools), list(ReasoningParserManager.list_registered())


def load_plugins(flags: Mapping[str, Any]) -> None:
    """Load the parser plug-ins that the user's flags name, as `vllm serve` does.

    vLLM only logs that a plug-in cannot be loaded. This function raises `ConfigError`.
    """
    for name in ("tool_parser_plugin", "reasoning_parser_plugin"):
        if plugin := flags.get(name):
            try:
                _load_plugin(plugin)
            except Exception as error:  # a plug-in may raise any error
                reason = " ".join(text_of(error).split())
                raise ConfigError(
                    f"--{name.replace('_', '-')} {plugin}: cannot be loaded: "
                    f"{type(error).__name__}: {reason}; name a Python file or an installed module"
                ) from error


def _load_plugin(plugin: str) -> None:
    """Import a module by its name, or a Python file by its path."""
    from vllm.utils.import_utils import import_from_path

    try:
        import_module(plugin)
    except ModuleNotFoundError:
        import_from_path(Path(plugin).stem, plugin)


async def render_prompt(renderer: Any, model_config: Any, prompt: Any) -> Any:
    """Render a raw prompt (text or token ids) into an engine's input."""
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    parsed = parse_model_prompt(model_config, prompt)
    (rendered,) = await renderer.render_cmpl_async([parsed], renderer.default_cmpl_tok_params)
    return rendered


def render_elsewhere(vllm_config: Any) -> None:
    """Configure an engine, before it starts, for prompts that a renderer outside it renders.

    vLLM's renderer for a single engine omits images that it has sent before. Here one renderer
    serves several replicas, and an image that one replica has seen is unknown to the others. With
    more than one API process, vLLM sends images whole, and caches only their processed form.
    """
    if vllm_config.model_config.supports_multimodal_inputs:
        vllm_config.parallel_config._api_process_count = 2


# -- chats without the engine client ---------------------------------------------------------
#
# `OpenAIServingChat.create_chat_completion` renders a request, gets the outputs from an engine
# client and formats them, all in one method. Here rendering and formatting are separate functions,
# which call the same methods of vLLM. Programs in this process submit the call themselves between
# the two.


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered chat request.

    An engine gets ``prompt``, the sampling ``params`` and ``options``. The other fields are needed
    to format its outputs.
    """

    request: Any
    prompt: Any
    params: Any
    options: Mapping[str, Any]
    request_id: str
    model_name: str
    conversation: Any
    parser: Any
    template_options: Mapping[str, Any]
    media_tokens: Mapping[str, int]


async def render_chat(serving: Any, request: Any) -> Any:
    """Render a ``ChatCompletionRequest``: return a `RenderedChat`, or vLLM's ``ErrorResponse``."""
    from vllm.entrypoints.openai.chat_completion.serving import _get_mm_token_counts
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens

    template_options = serving._effective_chat_template_kwargs(request)
    parser = None
    if serving.parser_cls is not None:
        parser = serving._make_parser(request, serving.renderer.tokenizer, template_options)
    rendered = await serving.render_chat_request(request)
    if hasattr(rendered, "error"):
        return rendered
    conversation, (prompt,) = rendered
    request_id = f"chatcmpl-{serving._base_request_id(None, request.request_id)}"
    adapter = serving._maybe_get_adapters(request, supports_default_mm_loras=True)
    limit = request.max_completion_tokens
    limit = get_max_tokens(
        serving.model_config.max_model_len,
        request.max_tokens if limit is None else limit,
        serving._extract_prompt_len(prompt),
        serving.default_sampling_params,
        serving.override_max_tokens,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
    )
    sampling = request.to_sampling_params
    if request.use_beam_search:
        sampling = request.to_beam_search_params
    params = sampling(limit, serving.default_sampling_params)
    serving._log_inputs(request_id, prompt, params=params, lora_request=adapter)
    ids = serving._extract_prompt_components(prompt).token_ids
    reasoning = serving._engine_reasoning_kwargs(request, parser, template_options, ids)
    return RenderedChat(
        request,
        prompt,
        params,
        {"lora_request": adapter, **reasoning},
        request_id,
        serving.models.model_name(adapter),
        conversation,
        parser,
        template_options,
        _get_mm_token_counts(prompt),
    )


def beam_outputs(serving: Any, chat: RenderedChat) -> AsyncGenerator[Any, None]:
    """Return the outputs of a beam search, for which vLLM makes many calls by its engine client."""
    outputs: AsyncGenerator[Any, None] = serving.beam_search(
        prompt=chat.prompt,
        request_id=chat.request_id,
        params=chat.params,
        lora_request=chat.options["lora_request"],
    )
    return outputs


async def format_whole(serving: Any, chat: RenderedChat, outputs: Iterable[Any]) -> Any:
    """Format a call's outputs as vLLM's ``ChatCompletionResponse``, or as its ``ErrorResponse``."""
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata

    return await serving.chat_completion_full_generator(
        chat.request,
        _each(outputs),
        chat.request_id,
        chat.model_name,
        chat.conversation,
        serving.renderer.tokenizer,
        RequestResponseMetadata(request_id=chat.request_id),
        parser=chat.parser,
        mm_token_counts=chat.media_tokens,
    )


async def _each(outputs: Iterable[Any]) -> AsyncGenerator[Any, None]:
    for output in outputs:
        yield output


def format_stream(
    serving: Any, chat: RenderedChat, outputs: AsyncIterator[Any]
) -> AsyncGenerator[str, None]:
    """Format a call's ``outputs`` as server-sent events. An error in ``outputs`` is an event,
    too.
    """
    from vllm.entrypoints.generate.base.protocol import RequestResponseMetadata

    events: AsyncGenerator[str, None] = serving.chat_completion_stream_generator(
        chat.request,
        outputs,
        chat.request_id,
        chat.model_name,
        chat.conversation,
        serving.renderer.tokenizer,
        RequestResponseMetadata(request_id=chat.request_id),
        chat_template_kwargs=chat.template_options,
        mm_token_counts=chat.media_tokens,
    )
    return events
