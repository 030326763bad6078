"""vLLM's own routes on this server: each request goes to the front end that has its model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from fastapi import FastAPI
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from agentrt.errors import AgentrtError, NotServedError
from agentrt.executors.chat_api import FIELDS, WORKS_FOR, Frontend, FrontProfile
from agentrt.executors.info import display_name
from agentrt.executors.vllm.entrypoints.models import FrontendsByModel
from agentrt.interrupts import Tool
from agentrt.serving.bodies import LONG, given, pause, whole
from agentrt.serving.error_responses import ApiError, describe, in_form_of, log_fault
from agentrt.serving.frontend.anthropic_tools import server_kinds
from agentrt.serving.frontend.bounds import (
    KnownFields,
    check_bounds,
    check_length,
    check_lists,
    within_window,
)
from agentrt.serving.frontend.conversations import MESSAGES, RESPONSES
from agentrt.serving.frontend.exchange import Exchange, clearer
from agentrt.serving.frontend.left_out import LeftOut
from agentrt.serving.frontend.messages import read_request
from agentrt.serving.frontend.response_items import TRIGGER, references
from agentrt.serving.frontend.response_requests import TOOL_SERVER_TYPES, Model, Prepared, prepare
from agentrt.serving.frontend.response_socket import ResponseSocket
from agentrt.serving.frontend.responses import ASKING, Asking, Kept, ResponseStore
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
    *("/v1/", "/v2/", "/inference/v1/generate", "/generative_scoring", "/version"),
    *("/tokenize", "/detokenize", "/tokenizer_info"),
    *("/pooling", "/classify", "/score", "/rerank"),
)
_OPERATORS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""vLLM has these only if its environment says VLLM_ALLOW_RUNTIME_LORA_UPDATING."""
_NO_CALLS = (
    *("/tokenize", "/detokenize", "/v1/messages/count_tokens", *_OPERATORS),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify"),
    *("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
)
_JSON = b"application/json"
_MODELS = "/v1/models"
_OF_RESPONSES = f"{RESPONSES}/"
_COMPACT = f"{RESPONSES}/compact"
_WINDOWS = (
    *("max_model_len", "context_window", "context_length"),  # vLLM and SGLang, Groq, OpenRouter
    *("max_input_tokens", "max_tokens"),  # Anthropic; prompt and answer share the window
)
"""Names of the tokens that a model takes."""


class Front(Protocol):
    """vLLM's front end of one model. ``names`` are the model's, and its adapters'. With
    ``reminders``, system messages in the middle of a chat stay at their place. ``budgets`` says
    whether its engines can hold thinking to a number of tokens, and ``images`` whether the model
    takes images.
    """

    app: FastAPI
    args: Any
    reminders: bool
    budgets: bool

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def max_model_len(self) -> int: ...

    def profile(self, model: str | None = None) -> FrontProfile: ...

    @property
    def images(self) -> bool: ...


def fronts_of(frontend: Frontend) -> tuple[Front, ...]:
    """A runtime's front end as vLLM's own, one for each model; none of an executor without."""
    each = frontend.fronts if isinstance(frontend, FrontendsByModel) else (frontend,)
    return tuple(cast(Front, one) for one in each if hasattr(one, "app"))


class FrontendApp:
    """vLLM's front ends as one ASGI application behind the server's own routes.

    When ``strict``, fields that vLLM would ignore are refused. At ``paths`` vLLM answers, and
    nobody else; there are others, such as that of one response.
    """

    def __init__(self, server: Server, fronts: Sequence[Front], *, strict: bool = False) -> None:
        self._server = server
        self._known = [KnownFields(front.app) for front in fronts if strict]
        self._fronts = tuple(fronts)
        self._tries = Tries()
        every = (getattr(route, "path", "{") for front in fronts for route in front.app.routes)
        self.paths = {path for path in every if "{" not in path and is_public(path, operator=False)}
        self._store = ResponseStore(server.runtime.now, lambda: server.response_rows)
        self._sockets: set[ResponseSocket] = set()
        server.at_drain.append(self._drain)
        self._models_of: dict[int, Model] = {}
        for front in fronts:
            if (responses := front.app.state.openai_serving_responses) is not None:
                self._store.attach(responses)
                self._models_of[id(front)] = _model_of(front, responses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        request = Request(scope, receive)
        if not is_public(scope["path"], operator=scope["state"]["operator"]):
            raise HTTPException(404, "Not Found")
        try:
            await self._serve(request, send)
        except ClientDisconnect:
            return
        except (HTTPException, AgentrtError) as error:
            status, body, headers = describe(error)
            log_fault(status, error)
            refusal = JSONResponse(in_form_of(scope["path"], body), status, headers)
            await refusal(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket of the Responses API. vLLM's own are not public."""
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
        """The server stops: close connections on which nothing is answered."""
        await asyncio.gather(*(socket.drain() for socket in tuple(self._sockets)))

    async def _serve(self, request: Request, send: Send) -> None:
        path, tenant = request.scope["path"], request.scope["state"]["tenant"]
        lists = path == _MODELS or path.startswith(f"{_MODELS}/")
        if lists and request.method == "GET":
            response = JSONResponse(await self._models(path.removeprefix(_MODELS).strip("/")))
            await response(request.scope, request.receive, send)
            return
        body = await request.body() if request.method == "POST" else b""
        kind = request.scope["state"]["headers"].get(b"content-type", b"").decode("latin-1")
        fields = _fields(kind, body)
        if len(body) > LONG:
            await pause()
        compacts = path == _COMPACT and request.method == "POST"
        if compacts:
            path, fields = RESPONSES, _compaction(fields)
            request.scope["path"], request.scope["raw_path"] = path, path.encode()
        for known in self._known[:1]:  # all front ends have the same routes
            known.check(path, fields)
        if path.startswith(_OF_RESPONSES):
            kept = await self._stored(request)
            if kept is not None and kept.whole is not None and _is_plain_get(request):
                await JSONResponse(kept.whole)(request.scope, request.receive, send)
                return
            send = _edited(kept, send)
        model = await _model(request, kind, fields)
        front = self._front(path, tenant, model)
        WORKS_FOR.set(tenant)
        token = ASKING.set(Asking(tenant, len(body), model))
        try:
            window, chat = front.max_model_len, fields
            served: Mapping[str, ServedTool] = {}
            if path.startswith(MESSAGES):
                fields, served, left_out = await self._read_messages(tenant, fields, front)
                send = left_out.noting(MESSAGES, send)
            fields = within_window(path, fields, window, budgets=front.budgets)
            left_out = LeftOut()
            prepared = await self._prepared(path, fields, front, left_out, compacts=compacts)
            send = left_out.noting(path, send)
            handed = _handed_on(request, body, prepared.fields)
            if request.method != "POST":
                await front.app(*handed, _refusing(path, send))
            elif makes_calls(path):
                check_bounds(path, prepared.fields, math.inf if prepared.before else len(body))
                check_length(fields, window)
                if len(body) > LONG:
                    await pause()
                exchange = Exchange(
                    *(self._server, self._store, self._tries, tenant, path, fields, chat),
                    prepared.edit,
                    prepared.before,
                    served,
                )
                await exchange.run(front.app, *handed, send)
            else:
                self._server.tenants.ask(tenant)
                await front.app(*handed, _refusing(path, send))
        finally:
            ASKING.reset(token)

    # -- responses that are kept -------------------------------------------------------

    async def _prepared(
        self,
        path: str,
        fields: Mapping[str, Any],
        front: Front,
        left_out: LeftOut,
        *,
        compacts: bool,
    ) -> Prepared:
        """A request as vLLM can answer it, without what is added to ``left_out``."""
        if path != RESPONSES or not fields:
            return Prepared(fields)
        tenant, size = ASKING.get().tenant, ASKING.get().size
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

    async def _before(self, tenant: str, fields: Mapping[str, Any]) -> Kept | None:
        """The response that a request goes on from; None if it names none, or none that is kept.

        Raises `ApiError` for a response that is still under way.
        """
        name = fields.get("previous_response_id")
        kept = await self._store.load(tenant, name) if isinstance(name, str) else None
        if kept is not None and kept.items is None:
            text = f"response {name!r} is still under way; wait until it is completed"
            raise ApiError(400, text, param="previous_response_id", code="response_in_progress")
        return kept

    async def _stored(self, request: Request) -> Kept | None:
        """The response that a request is about."""
        name = request.scope["path"].removeprefix(_OF_RESPONSES).partition("/")[0]
        return await self._store.load(request.scope["state"]["tenant"], name)

    # -- Anthropic's API ---------------------------------------------------------------

    async def _read_messages(
        self, tenant: str, fields: Mapping[str, Any], front: Front
    ) -> tuple[Mapping[str, Any], Mapping[str, ServedTool], LeftOut]:
        """A request as vLLM can answer it, the tools that this server runs for it, and what was
        left out.
        """
        tools = await self._server_tools(tenant, fields)
        offered = {kind: described(tool) for kind, tool in tools.items()}
        read = read_request(fields, takes_images=lambda: front.images, offered=offered)
        return read.body, served_tools(read.served, tools, fields), read.left_out

    async def _server_tools(self, tenant: str, fields: Mapping[str, Any]) -> dict[str, Tool]:
        """The tools of Anthropic's servers that a request has and this server runs."""
        names = self._server.server_tools
        if not names or not (kinds := server_kinds(fields)):
            return {}
        toolbox = self._server.runtime.toolbox
        return await find_tools(names, kinds, lambda name: toolbox.find(name, tenant))

    # -- models ------------------------------------------------------------------------

    def _front(self, path: str, tenant: str, model: str | None) -> Front:
        """The front end of ``model``; of a response, that which made it."""
        if path.startswith(_OF_RESPONSES):
            kept = self._store.get(tenant, path.removeprefix(_OF_RESPONSES).partition("/")[0])
            model = None if kept is None else kept.model
        if not self._fronts:
            raise HTTPException(404, "Not Found")
        if not model or len(self._fronts) == 1:
            return self._fronts[0]
        for front in self._fronts:
            if model in front.names:
                return front
        names = ", ".join(name for front in self._fronts for name in front.names)
        raise NotServedError(f"this server does not serve model {model!r}; it serves {names}")

    async def _models(self, name: str) -> dict[str, Any]:
        """All models and adapters as vLLM describes them, or the one of that name.

        Clients of several APIs read the same list, each the fields that it knows.
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
        for card in cards:
            if card["id"] == name:
                return card
        served = ", ".join(card["id"] for card in cards)
        raise NotServedError(f"this server does not serve model {name!r}; it serves {served}")


def _described(card: Mapping[str, Any], front: Front) -> dict[str, Any]:
    """What a list of models says of one: vLLM's fields, Anthropic's, and the model's window by each
    name that clients read it by.
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
    if card.get("root"):  # vLLM tells the folder that it was loaded from
        described["root"] = display_name(card["root"])
    return described


def _fields(kind: str, body: bytes) -> Mapping[str, Any]:
    """The fields of a JSON body; none where vLLM will refuse it, or where it is a form.

    Raises `ApiError` for JSON that has NaN, half surrogates, or no end to its depth: Python's own
    parser takes these, and what works with them fails later.
    """
    if not body or "json" not in kind:
        return {}
    try:
        fields = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    return fields if isinstance(fields, dict) else {}


async def _model(request: Request, kind: str, fields: Mapping[str, Any]) -> str | None:
    """The model that a request names, in its body or form."""
    model = fields.get("model")
    if kind.startswith("multipart/"):
        async with request.form() as form:
            model = form.get("model")
    return model if isinstance(model, str) else None


def _model_of(front: Front, responses: Any) -> Model:
    """What reading requests of the Responses API for the model of ``front`` depends on."""
    has_server = getattr(front.args, "tool_server", None) is not None
    profile = front.profile()
    takes = {"input_image": profile.images, "input_audio": profile.audio}
    return Model(
        harmony=responses.use_harmony,
        media=frozenset(kind for kind, is_taken in takes.items() if is_taken),
        own_tools=TOOL_SERVER_TYPES if has_server else frozenset(),
    )


def _edited(kept: Kept | None, send: Send) -> Send:
    """``send`` with a stored response in its client's own form."""
    return send if kept is None or kept.edit is None else kept.edit.sending(send)


def _is_plain_get(request: Request) -> bool:
    """Whether a request asks for a response, and not for its events."""
    name = request.scope["path"].removeprefix(_OF_RESPONSES)
    is_stream = request.query_params.get("stream", "false").lower() not in ("false", "0")
    return request.method == "GET" and "/" not in name and not is_stream


def _compaction(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """A request to ``/v1/responses/compact`` as one for a response that is the summary."""
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
    if not isinstance(items, list):
        return fields
    own = {"input": [*items, {"type": TRIGGER}], "store": False, "stream": False}
    return {**fields, **own, "background": False}


def _handed_on(request: Request, body: bytes, fields: Mapping[str, Any]) -> tuple[Scope, Receive]:
    """The request as vLLM sees it: its id is the server's own."""
    headers = [one for one in request.scope["headers"] if one[0] != b"x-request-id"]
    own = (b"x-request-id", request.scope["state"]["request_id"].encode("ascii"))
    scope = {**request.scope, "headers": [*headers, own]}
    for name in ("router", "endpoint"):  # of our own application, where it was asked first
        scope.pop(name, None)
    kind = request.scope["state"]["headers"].get(b"content-type", b"").lower()
    if fields and kind.partition(b";")[0] == _JSON:  # vLLM refuses all other names of JSON
        scope[FIELDS] = fields
    return scope, given(whole(body), request.receive)


def _refusing(path: str, send: Send) -> Send:
    """Send by ``send``; refusals of vLLM's are in the form of the API that ``path`` belongs to."""
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
        headers = [one for one in start["headers"] if one[0] != b"content-length"]
        headers.append((b"content-length", str(len(whole_body)).encode()))
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": whole_body})

    return send_clearer


def is_public(path: str, *, operator: bool) -> bool:
    """Whether vLLM may answer at ``path``.

    Its health checks and metrics are not here, since the server has its own, nor what steers the
    engine (sleep, caches, profiles, weights), nor SageMaker's.
    """
    if path in _OPERATORS:
        return operator
    return any(path == one or (path.startswith(one) and one.endswith("/")) for one in _CLIENTS)


def makes_calls(path: str) -> bool:
    """Whether a request at ``path`` generates text, which is some program's call."""
    return path not in _NO_CALLS and not path.startswith("/v1/responses/") and not is_render(path)


def is_render(path: str) -> bool:
    """Whether vLLM only renders a prompt, or reads an output."""
    return path.endswith(("/render", "/derender"))
