"""vLLM's own HTTP routes on this server: each request goes to the front end of its model."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast
from urllib.parse import urlencode

from fastapi import FastAPI
from starlette.datastructures import URL
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from agentrt.errors import AgentrtError, NotServedError
from agentrt.executors.chat_api import FIELDS, WORKS_FOR, Frontend, FrontProfile
from agentrt.executors.info import display_name
from agentrt.executors.vllm.entrypoints.models import FrontendsByModel
from agentrt.interrupts import Tool
from agentrt.serving.bodies import LONG, ReadBody, body_of, parse_json, pause, whole, with_length
from agentrt.serving.error_responses import (
    ApiError,
    describe,
    in_form_of,
    log_fault,
    openai_error,
)
from agentrt.serving.frontend.anthropic_tools import server_kinds
from agentrt.serving.frontend.bounds import (
    KnownFields,
    check_bounds,
    check_length,
    check_lists,
    with_plain_values,
    within_window,
)
from agentrt.serving.frontend.conversations import MESSAGES, RESPONSES
from agentrt.serving.frontend.exchange import Exchange, clearer
from agentrt.serving.frontend.left_out import LeftOut
from agentrt.serving.frontend.messages import read_request
from agentrt.serving.frontend.response_answers import TOOL_SERVER_TYPES, Model, Prepared, prepare
from agentrt.serving.frontend.response_items import TRIGGER, references
from agentrt.serving.frontend.response_socket import ResponseSocket
from agentrt.serving.frontend.responses import (
    CURRENT_REQUEST,
    CurrentRequest,
    ResponseStore,
    StoredResponse,
)
from agentrt.serving.frontend.retries import Tries
from agentrt.serving.frontend.server_tools import (
    ServedTool,
    described,
    find_tools,
    served_tools,
)
from agentrt.serving.server import Server
from agentrt.serving.sockets import no_socket

_CLIENTS = (
    *("/v1/", "/v2/", "/inference/v1/generate", "/generative_scoring", "/version", "/load"),
    *("/tokenize", "/detokenize", "/tokenizer_info"),
    *("/pooling", "/classify", "/score", "/rerank"),
)
_OPERATORS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Routes for operators only. vLLM has them if VLLM_ALLOW_RUNTIME_LORA_UPDATING is set."""
_BASES = ("base_model_name", "model")
"""The fields of a request to one of these routes that name the adapter's model."""
_POOLING = (
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
_SPEECH = ("/v1/audio/transcriptions", "/v1/audio/translations")
_GENERATING = ("/v1/chat/completions", "/v1/completions", RESPONSES, MESSAGES)
_NO_CALLS = (
    *("/tokenize", "/detokenize", "/v1/messages/count_tokens", *_OPERATORS),
    *_POOLING,
)
_JSON = b"application/json"
_MODELS = "/v1/models"
_LOAD = "/load"
_OF_RESPONSES = f"{RESPONSES}/"
_AFTER = "starting_after"
_LONGEST_NUMBER = 9
"""Maximum number of digits of an event's number."""
_FALSE, _TRUE = ("false", "f", "no", "n", "off", "0"), ("true", "t", "yes", "y", "on", "1")
"""The values of a query parameter that FastAPI reads as a boolean, in lower case."""
_COMPACT = f"{RESPONSES}/compact"
_WINDOWS = (
    *("max_model_len", "context_window", "context_length"),  # vLLM and SGLang, Groq, OpenRouter
    *("max_input_tokens", "max_tokens"),  # Anthropic; prompt and answer share the window
)
"""The field names under which clients look for a model's context window (tokens)."""


class HTTPFrontend(Protocol):
    """vLLM's HTTP front end for one model.

    ``names`` are the names of the model and its adapters. With ``reminders``, system messages in
    the middle of a chat keep their position. ``budgets`` says whether the engine can limit the
    number of thinking tokens, and ``images`` whether the model accepts images.
    """

    app: FastAPI
    args: Any
    reminders: bool
    budgets: bool

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def max_model_len(self) -> int: ...

    def served_as(self, model: str | None) -> str: ...

    def profile(self, model: str | None = None) -> FrontProfile: ...

    @property
    def images(self) -> bool: ...


def fronts_of(frontend: Frontend) -> tuple[HTTPFrontend, ...]:
    """Return vLLM's front ends, one for each model. Executors without vLLM's routes have no front
    ends.
    """
    each = frontend.fronts if isinstance(frontend, FrontendsByModel) else (frontend,)
    return tuple(cast(HTTPFrontend, front) for front in each if hasattr(front, "app"))


def _paths_of(front: HTTPFrontend) -> set[str]:
    """Return a front end's public paths, without those that have parameters."""
    paths = (getattr(route, "path", "{") for route in front.app.routes)
    return {path for path in paths if "{" not in path and is_public(path, operator=False)}


class FrontendApp:
    """vLLM's front ends as one ASGI application behind the server's own routes.

    With ``strict``, a request is refused if it has fields that vLLM would ignore. ``paths`` are
    vLLM's public paths without parameters; paths with parameters, such as the path of a stored
    response, are not among them.
    """

    def __init__(
        self, server: Server, fronts: Sequence[HTTPFrontend], *, strict: bool = False
    ) -> None:
        self._server = server
        self._known = {id(front): KnownFields(front.app) for front in fronts if strict}
        self._fronts = tuple(fronts)
        self._tries = Tries()
        self._paths_of = {id(front): _paths_of(front) for front in fronts}
        self.paths = set().union(*self._paths_of.values())
        self._store = ResponseStore(server.runtime.now, lambda: server.response_rows)
        self._sockets: set[ResponseSocket] = set()
        self._adapters = asyncio.Lock()
        server.at_drain.append(self._drain)
        self._models_of: dict[int, Model] = {}
        for front in fronts:
            # A model that does not generate has no Responses API.
            responses = getattr(front.app.state, "openai_serving_responses", None)
            if responses is not None:
                self._store.attach(responses)
                self._models_of[id(front)] = _model_of(front, responses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        request = Request(scope, receive)
        path = scope["path"]
        is_operator = scope["state"]["operator"]
        if path not in self.paths and not any(
            is_public(spelt, operator=is_operator) for spelt in (path, path.rstrip("/"))
        ):
            if (refusal := self.wrong_url(scope["method"], path)) is None:
                raise HTTPException(404, "Not Found")
            await refusal(scope, receive, send)
            return
        try:
            if (redirect := self._check_route(scope)) is not None:
                await redirect(scope, receive, send)
                return
            serve = self._change_adapters if path in _OPERATORS else self._serve
            await serve(request, receive, send)
        except ClientDisconnect:
            return
        except (HTTPException, AgentrtError) as error:
            status, body, headers = describe(error)
            log_fault(status, error)
            refusal = JSONResponse(in_form_of(scope["path"], body), status, headers)
            await refusal(scope, receive, send)

    def _check_route(self, scope: Scope) -> RedirectResponse | None:
        """Return None for a path and method that a front end has. For a path that has a slash at
        its end, and that a front end has without this slash, return the redirect of vLLM's server.

        Raises `HTTPException` with status 404 for a path that no front end has, and with status 405
        for a method that the path does not have. None of these requests is a call of a program.
        """
        path, method = scope["path"], scope["method"]
        if method == "POST" and path in _GENERATING and path in self.paths:
            return None  # usual, and cheaper than to match routes
        is_own = method == "GET" and (path == _MODELS or path.startswith(f"{_MODELS}/"))
        is_own |= method == "POST" and path == _COMPACT
        is_response = path.startswith(_OF_RESPONSES) and "/" not in path[len(_OF_RESPONSES) :]
        is_own |= method == "DELETE" and is_response
        if is_own or not self._fronts:
            return None
        methods = set[str]()
        without_slash = {**scope, "path": path.rstrip("/")}
        for route in (route for front in self._fronts for route in front.app.routes):
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return None
            if match is Match.PARTIAL:
                methods |= getattr(route, "methods", None) or set()
            elif path.endswith("/") and route.matches(without_slash)[0] is not Match.NONE:
                return RedirectResponse(str(URL(scope=without_slash)))
        if methods:
            methods |= {"DELETE"} if is_response else set()
            allowed = {"allow": ", ".join(sorted(methods))}
            raise HTTPException(405, f"{method} {path}: method not allowed", allowed)
        if path in (*_GENERATING, *_POOLING, *_SPEECH):
            return None  # `_check_path` says what the model can do
        raise HTTPException(404, f"{method} {path}: not found{self._way_from(path)}")

    def wrong_url(self, method: str, path: str) -> JSONResponse | None:
        """Return the answer to a request for an unknown path, such as /chat/completions, that a
        client calls if its base URL is wrong; None for any other path.

        It has the format of OpenAI's API at every path: OpenAI's clients show no other.
        """
        if not (way := self._way_from(path)):
            return None
        return JSONResponse(openai_error(404, f"{method} {path}: not found{way}"), 404)

    def _way_from(self, path: str) -> str:
        """Return the end of the error for an unknown path; "" if it names no API of this server."""
        if path.startswith("/v1/v1/"):
            return "; the client adds /v1 to the base URL itself, so leave it out there"
        named = [own for own in self.paths if path.endswith(own.removeprefix("/v1"))]
        if not named:
            return ""
        api = max(named, key=lambda own: (len(own.removeprefix("/v1")), own))
        return f"; this API is at {api}, so correct the client's base URL"

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket of the Responses API. vLLM's own WebSockets are not public."""
        if scope["path"] != RESPONSES or RESPONSES not in self.paths:
            await no_socket(scope["path"])(scope, receive, send)
            return
        connection = ResponseSocket(scope, receive, send)
        self._sockets.add(connection)
        try:
            await connection.serve()
        finally:
            self._sockets.remove(connection)

    async def _drain(self) -> None:
        """Close idle WebSockets now, and busy WebSockets after their answer, because the server
        stops.
        """
        await asyncio.gather(*(socket.drain() for socket in tuple(self._sockets)))

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        path, tenant = request.scope["path"], request.scope["state"]["tenant"]
        if request.method == "GET" and (own := await self._own_answer(path)) is not None:
            await own(request.scope, request.receive, send)
            return
        read = await body_of(request, receive)
        body = (read.body or b"") if request.method == "POST" else b""
        kind = _kind(request)
        fields = _fields(kind, body)
        if len(body) > LONG:
            await pause()
        compacts = path == _COMPACT and request.method == "POST"
        if compacts:
            path, fields = RESPONSES, _compaction(fields)
            request.scope["path"], request.scope["raw_path"] = path, path.encode()
        if path.startswith(_OF_RESPONSES):
            kept = await self._stored(request)
            if (answer := await self._answer_about(kept, request)) is not None:
                await answer(request.scope, request.receive, send)
                return
            send = _edited(kept, request, send)
        form = await _form(request, read, kind)
        model = form.get("model", fields.get("model"))
        model = model if isinstance(model, str) else None
        front = self._front(path, tenant, model)
        self._check_path(path, front)
        if (known := self._known.get(id(front))) is not None:
            known.check(path, fields)
        WORKS_FOR.set(tenant)
        token = CURRENT_REQUEST.set(CurrentRequest(tenant, len(body), model))
        try:
            window, chat = front.max_model_len, fields
            served: Mapping[str, ServedTool] = {}
            if path.startswith(MESSAGES):
                fields, served, left_out = await self._read_messages(tenant, fields, front)
                send = left_out.noting(MESSAGES, send)
            fields = within_window(path, fields, window, budgets=front.budgets)
            prepared = Prepared(fields)
            if path == RESPONSES and fields:
                left_out = LeftOut()
                prepared = await self._prepared(fields, front, left_out, compacts=compacts)
                send = left_out.noting(path, send)
            handed = _handed_on(request.scope, prepared.fields), read
            if request.method != "POST":
                await front.app(*handed, _refusing(path, send))
            elif makes_calls(path):
                check_bounds(path, prepared.fields, math.inf if prepared.before else len(body))
                check_length(fields, window)
                if len(body) > LONG:
                    await pause()
                exchange = Exchange(
                    *(self._server, self._store, self._tries, tenant, path),
                    {**fields, **_form_options(form)} if form else fields,
                    chat,
                    prepared.edit,
                    prepared.before,
                    served,
                )
                await exchange.run(front.app, *handed, send)
            else:
                self._server.tenants.ask(tenant)
                await front.app(*handed, _refusing(path, send))
        finally:
            CURRENT_REQUEST.reset(token)

    async def _own_answer(self, path: str) -> JSONResponse | None:
        """Return the answer to a request that reads a path of this server's own, or None."""
        if path == _MODELS or path.startswith(f"{_MODELS}/"):
            return JSONResponse(await self._models(path.removeprefix(_MODELS).removeprefix("/")))
        if path == _LOAD and self._fronts:
            # vLLM counts only with --enable-server-load-tracking.
            load = sum(front.app.state.server_load_metrics for front in self._fronts)
            return JSONResponse({"server_load": load})
        return None

    # -- responses that are kept -------------------------------------------------------

    async def _prepared(
        self,
        fields: Mapping[str, Any],
        front: HTTPFrontend,
        left_out: LeftOut,
        *,
        compacts: bool,
    ) -> Prepared:
        """Return a Responses request in a form that vLLM can answer.

        The types of the parts that were removed are added to ``left_out``.
        """
        tenant, size = CURRENT_REQUEST.get().tenant, CURRENT_REQUEST.get().size
        check_lists(fields, size)
        before = await self._before(tenant, fields)
        if names := references(fields.get("input")):
            await self._store.load_items(tenant, names)
        return prepare(
            fields,
            self._models_of.get(id(front), Model()),
            left_out,
            before=None if before is None else before.items,
            item_of=lambda name: self._store.item(tenant, name),
            compacts=compacts,
        )

    async def _before(self, tenant: str, fields: Mapping[str, Any]) -> StoredResponse | None:
        """Return the response named by ``previous_response_id``.

        Returns None if the request names no response, or a response that is not stored. Raises
        `ApiError` for a response that is still being generated.
        """
        name = fields.get("previous_response_id")
        kept = await self._store.load(tenant, name) if isinstance(name, str) else None
        if kept is not None and kept.items is None:
            text = f"response {name!r} is still being generated; wait until it is completed"
            raise ApiError(400, text, param="previous_response_id", code="response_in_progress")
        return kept

    async def _stored(self, request: Request) -> StoredResponse | None:
        """Return the stored response that a request's path names; None if it is not stored. Raises
        `ApiError` if the request reads the response's events, and these are not stored.
        """
        name = request.scope["path"].removeprefix(_OF_RESPONSES).partition("/")[0]
        kept = await self._store.load(request.scope["state"]["tenant"], name)
        if kept is not None:
            _check_events(request, kept)
        return kept

    async def _answer_about(
        self, kept: StoredResponse | None, request: Request
    ) -> JSONResponse | None:
        """Return the answer to a request about a stored response; None if vLLM answers it."""
        if request.method == "DELETE" and "/" not in request.scope["path"][len(_OF_RESPONSES) :]:
            return JSONResponse(await self._delete(request, kept))
        if kept is None or kept.whole is None:
            return None
        if _is_cancellation(request):
            return _late_cancellation(kept.whole)
        return JSONResponse(kept.whole) if _is_plain_get(request) else None

    async def _delete(self, request: Request, kept: StoredResponse | None) -> dict[str, Any]:
        """Delete the stored response that a request's path names, and return the answer. Raises
        `ApiError` for an unknown response, and for a response that is still being generated.
        """
        name = request.scope["path"].removeprefix(_OF_RESPONSES)
        if kept is None:
            text = f"there is no response {name!r}; it was not stored, was deleted, or has expired"
            raise ApiError(404, text, code="response_not_found")
        status = getattr(kept.objects.get("response"), "status", None)
        if kept.items is None and status in ("queued", "in_progress"):
            text = f"response {name!r} is still being generated; cancel it, or wait for its end"
            raise ApiError(400, text, code="response_in_progress")
        await self._store.delete(request.scope["state"]["tenant"], name)
        return {"id": name, "object": "response", "deleted": True}

    # -- Anthropic's API ---------------------------------------------------------------

    async def _read_messages(
        self, tenant: str, fields: Mapping[str, Any], front: HTTPFrontend
    ) -> tuple[Mapping[str, Any], Mapping[str, ServedTool], LeftOut]:
        """Return a Messages request in a form that vLLM can answer, the tools that this server
        runs for it, and the types of the parts that were removed.
        """
        tools = await self._server_tools(tenant, fields)
        offered = {kind: described(tool) for kind, tool in tools.items()}
        read = read_request(fields, takes_images=lambda: front.images, offered=offered)
        return read.body, served_tools(read.served, tools, fields), read.left_out

    async def _server_tools(self, tenant: str, fields: Mapping[str, Any]) -> dict[str, Tool]:
        """Return this server's replacements for the Anthropic server tools of a request."""
        names = self._server.server_tools
        if not names or not (kinds := server_kinds(fields)):
            return {}
        toolbox = self._server.runtime.toolbox
        return await find_tools(names, kinds, lambda name: toolbox.find(name, tenant))

    # -- models ------------------------------------------------------------------------

    def _front(self, path: str, tenant: str, model: str | None) -> HTTPFrontend:
        """Return the front end for ``model``, or for the model that made the stored response that
        ``path`` names. Without a model, or with a single front end, return the first front end.

        Raises `NotServedError` for an unknown model, and `HTTPException` 404 if there is no front
        end.
        """
        if path.startswith(_OF_RESPONSES):
            kept = self._store.get(tenant, path.removeprefix(_OF_RESPONSES).partition("/")[0])
            model = None if kept is None else kept.model
        if not self._fronts:
            why = "use --engine vllm, without --skip-tokenizer-init"
            raise HTTPException(404, f"this server's engine has no HTTP API; {why}")
        if not model or len(self._fronts) == 1:
            return self._fronts[0]
        for front in self._fronts:
            if model in front.names:
                return front
        for front in self._fronts:  # a name that `/v1/models` does not list
            with contextlib.suppress(NotServedError):
                front.served_as(model)
                return front
        names = ", ".join(name for front in self._fronts for name in front.names)
        raise NotServedError(f"this server does not serve model {model!r}; it serves {names}")

    async def _change_adapters(self, request: Request, receive: Receive, send: Send) -> None:
        """Let vLLM load the LoRA adapter that a request names, or unload it."""
        scope, read = request.scope, await body_of(request, receive)
        fields = _fields(_kind(request), read.body or b"")
        handed = {name: value for name, value in fields.items() if name not in _BASES}
        # vLLM's front ends do not see each other's names: two must not load one name at once.
        async with self._adapters:
            front = self._front_of_adapter(scope["path"], scope["state"]["tenant"], fields)
            if (known := self._known.get(id(front))) is not None:
                known.check(scope["path"], handed)
            self._server.tenants.ask(scope["state"]["tenant"])
            await front.app(_handed_on(scope, handed), read, send)

    def _front_of_adapter(self, path: str, tenant: str, fields: Mapping[str, Any]) -> HTTPFrontend:
        """Return the front end that loads or unloads the LoRA adapter of a request.

        ``base_model_name`` names the adapter's model, as in vLLM's ``--lora-modules``, and
        ``model`` does the same. Without these fields, it is the model that has an adapter of this
        name, or else the first model.

        Raises `ApiError` if another model has the name of the adapter to load, and `NotServedError`
        for an unknown model.
        """
        name = fields.get("lora_name")
        owner = next((front for front in self._fronts if name in front.names), None)
        named = (fields.get(field) for field in _BASES)
        base = next((base for base in named if isinstance(base, str) and base), None)
        if base is None:
            return owner or self._front(path, tenant, None)
        front = self._front(path, tenant, base)
        front.served_as(base)
        if path == _OPERATORS[0] and owner is not None and owner is not front:
            text = (
                f"lora_name: {name!r} is already the name of model {owner.names[0]!r}, or of an "
                "adapter of this model; choose another name"
            )
            raise ApiError(400, text, param="lora_name", code="name_taken")
        return front

    def _check_path(self, path: str, front: HTTPFrontend) -> None:
        """Raise `ApiError` 404 if a model cannot do what ``path`` asks for, such as embeddings."""
        paths = self._paths_of[id(front)]
        apis = (*_GENERATING, *_POOLING, *_SPEECH)
        if path in paths or path not in apis:
            return
        does = "generates no text"
        if paths.intersection(_GENERATING):
            does = "generates text"
        elif paths.intersection(_SPEECH):
            does = "turns speech into text"
        able = ", ".join(each for each in apis if each in paths)
        raise ApiError(
            404,
            f"model {front.names[0]!r} {does}, and has no {path}; it has {able}",
            code="no_such_path",
        )

    async def _models(self, name: str) -> dict[str, Any]:
        """Return the list of all models and adapters if ``name`` is empty; otherwise return the
        card of the model or adapter called ``name``, which may also be a name that requests may use
        and the list does not have, such as the model's folder. Raises `NotServedError` for an
        unknown name.

        Each card has the fields of several vendors' APIs, so that every client finds the fields of
        its own API.
        """
        cards: list[dict[str, Any]] = []
        for front in self._fronts:
            listed = await front.app.state.openai_serving_models.show_available_models()
            cards += [_described(card, front) for card in listed.model_dump()["data"]]
        if names := self._server.server_tools:
            cards = [{**card, "server_tools": sorted(names)} for card in cards]
        if not name:
            first, last = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
            page = {"has_more": False, "first_id": first, "last_id": last}  # as at Anthropic
            return {"object": "list", "data": cards, **page}
        by_name: dict[str, dict[str, Any]] = {card["id"]: card for card in reversed(cards)}
        for spelt in (name, name.rstrip("/")):
            if spelt in by_name:
                return by_name[spelt]
            for front in self._fronts:
                with contextlib.suppress(NotServedError):
                    return by_name[front.served_as(spelt)]
        served = ", ".join(card["id"] for card in cards)
        raise NotServedError(f"this server does not serve model {name!r}; it serves {served}")


def _described(card: Mapping[str, Any], front: HTTPFrontend) -> dict[str, Any]:
    """Return a model's card: vLLM's fields, Anthropic's fields, and the context window (tokens)
    under each field name that clients look for.
    """
    window = front.max_model_len
    made = datetime.fromtimestamp(card.get("created") or 0, UTC)
    described = {
        **card,
        "type": "model",
        "display_name": card["id"],
        "created_at": made.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        **dict.fromkeys(_WINDOWS, window),
    }
    if card.get("root"):  # vLLM would show the local folder that the model was loaded from
        described["root"] = display_name(card["root"])
    return described


def _kind(request: Request) -> str:
    """Return the content type of a request in lower case."""
    headers: Mapping[bytes, bytes] = request.scope["state"]["headers"]
    return headers.get(b"content-type", b"").decode("latin-1").lower()


def _fields(kind: str, body: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON body. A form, or JSON that is not an object, has no fields.
    ``kind`` is the content type in lower case.

    Raises `ApiError` for a body that is not JSON.
    """
    if not body or "json" not in kind:
        return {}
    try:
        fields = parse_json(body)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    return with_plain_values(fields) if isinstance(fields, dict) else {}


async def _form(request: Request, read: ReadBody, kind: str) -> Mapping[str, str]:
    """Return the fields of a form, without its files. Empty if the body is not a form, or if the
    form is damaged, which vLLM refuses.
    """
    if not kind.startswith("multipart/"):
        return {}
    own = ReadBody(whole(read.body or b""), read.rest)  # vLLM reads the form, too
    try:
        async with Request(request.scope, own).form() as form:
            return {name: value for name, value in form.items() if isinstance(value, str)}
    except MultiPartException:
        return {}


def _form_options(form: Mapping[str, str]) -> dict[str, bool]:
    """Return the options of a form on which the way of its answer depends, as JSON has them."""
    return {"stream": form.get("stream", "").lower() in _TRUE}


def _model_of(front: HTTPFrontend, responses: Any) -> Model:
    """Return the properties of a front end's model on which the conversion of requests depends."""
    has_server = getattr(front.args, "tool_server", None) is not None
    profile = front.profile()
    takes = {"input_image": profile.images, "input_audio": profile.audio}
    return Model(
        harmony=responses.use_harmony,
        media=frozenset(kind for kind, is_taken in takes.items() if is_taken),
        own_tools=TOOL_SERVER_TYPES if has_server else frozenset(),
    )


def _edited(kept: StoredResponse | None, request: Request, send: Send) -> Send:
    """Return ``send``, or a wrapper that edits a stored response as the request that created it
    requires. If the response is edited, vLLM is asked for all events of the response, and
    the wrapper leaves out those up to ``starting_after``.
    """
    if kept is None or kept.edit is None:
        return send
    after = request.query_params.get(_AFTER, "")
    if not after.isdecimal() or len(after) > _LONGEST_NUMBER:
        return kept.edit.sending(send)
    others = [pair for pair in request.query_params.multi_items() if pair[0] != _AFTER]
    request.scope["query_string"] = urlencode(others).encode()
    return kept.edit.sending(send, int(after))


def _is_plain_get(request: Request) -> bool:
    """Return whether a request reads a stored response as JSON, not as a stream of events."""
    return _is_get(request) and request.query_params.get("stream", "false").lower() in _FALSE


def _is_cancellation(request: Request) -> bool:
    """Return whether a request cancels a stored response."""
    name = request.scope["path"].removeprefix(_OF_RESPONSES)
    return request.method == "POST" and name.partition("/")[2] == "cancel"


def _late_cancellation(response: Mapping[str, Any]) -> JSONResponse:
    """Return the answer to the cancellation of a response that has ended.

    As at OpenAI, a cancellation that comes too late, or twice, has no effect. vLLM refuses it, and
    knows no response from before a restart.
    """
    if response.get("background"):
        return JSONResponse(response)
    # This is vLLM's own error.
    error = {
        "message": "Cannot cancel a synchronous response.",
        "type": "invalid_request_error",
        "param": "response_id",
        "code": 400,
    }
    return JSONResponse({"error": error}, 400)


def _check_events(request: Request, kept: StoredResponse) -> None:
    """Raise `ApiError` for a request that reads the events of a stored response without events.
    vLLM would notice that only after the status of its answer has been sent.
    """
    is_stream = _is_get(request) and request.query_params.get("stream", "false").lower() in _TRUE
    if is_stream and "events" not in kept.objects:
        name = request.scope["path"].removeprefix(_OF_RESPONSES)
        text = (
            f"the events of response {name!r} are not stored; only a response that was created "
            'with "background": true and "stream": true has events, until the server restarts. '
            "Leave 'stream' out to get the response"
        )
        raise ApiError(400, text, param="stream", code="response_not_streamed")


def _is_get(request: Request) -> bool:
    """Return whether a request reads a stored response."""
    name = request.scope["path"].removeprefix(_OF_RESPONSES)
    return request.method == "GET" and "/" not in name


def _compaction(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn a request to ``/v1/responses/compact`` into a request whose response is a summary.

    Raises `ApiError`, in OpenAI's words, for a request without a chat, and for an ``input`` of the
    wrong type.
    """
    value = fields.get("input")
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if items is not None and not isinstance(items, list):
        kind = type(value).__name__
        text = f"Invalid type for 'input': expected a string or an array of items, but got {kind}."
        raise ApiError(400, text, param="input", code="invalid_type")
    if not items and not isinstance(fields.get("previous_response_id"), str):
        text = (
            "Missing required parameter: 'input'. Send the chat to compact as 'input', or the "
            "response that it ended with as 'previous_response_id'."
        )
        raise ApiError(400, text, param="input", code="missing_required_parameter")
    items = items or []
    own = {"input": [*items, {"type": TRIGGER}], "store": False, "stream": False}
    return {**fields, **own, "background": False}


def _handed_on(scope: Scope, fields: Mapping[str, Any]) -> Scope:
    """Return the ASGI scope for vLLM, with this server's request id."""
    headers = [header for header in scope["headers"] if header[0] != b"x-request-id"]
    own = (b"x-request-id", scope["state"]["request_id"].encode("ascii"))
    scope = {**scope, "headers": [*headers, own]}
    for name in ("router", "endpoint"):  # set by this server's own router, which matched first
        if name in scope:
            del scope[name]
    kind = scope["state"]["headers"].get(b"content-type", b"").lower()
    if fields and kind.partition(b";")[0] == _JSON:  # vLLM refuses other JSON content types
        scope[FIELDS] = fields
    return scope


def _refusing(path: str, send: Send) -> Send:
    """Return ``send`` wrapped so that vLLM's errors have the format of the API at ``path``."""
    if not path.startswith(MESSAGES):
        return send
    start: Message = {}
    body = bytearray()

    async def send_clearer(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
        if start["status"] < 400:
            await send(message)
            return
        body.extend(message.get("body", b""))
        if message is start or message.get("more_body", False):
            return
        whole_body = clearer(path, start["status"], bytes(body))
        await send(with_length(start, whole_body))
        await send({"type": "http.response.body", "body": whole_body})

    return send_clearer


def is_public(path: str, *, operator: bool) -> bool:
    """Return whether clients may reach vLLM's route at ``path``; ``operator`` is True for
    operators.

    Clients cannot reach vLLM's health checks and metrics (this server has its own), the routes that
    control the engine (sleep, caches, profiles, weights), and the routes for SageMaker.
    """
    if path in _OPERATORS:
        return operator
    return any(
        path == prefix or (path.startswith(prefix) and prefix.endswith("/")) for prefix in _CLIENTS
    )


def makes_calls(path: str) -> bool:
    """Return whether a request at ``path`` generates text, and so counts as calls of a program."""
    return path not in _NO_CALLS and not path.startswith("/v1/responses/") and not is_render(path)


def is_render(path: str) -> bool:
    """Return whether vLLM only renders a prompt or parses an output at ``path``, without
    generating.
    """
    return path.endswith(("/render", "/derender"))
