"""One HTTP request that makes model calls: it joins a program, and its answer is parsed while it
is sent, so that the program's next request is recognised.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrt.executors.chat_api import FIELDS, GONE, calling
from agentrt.runtime.first_words import first_words
from agentrt.serving.bodies import pause, with_length
from agentrt.serving.error_responses import (
    SupersededError,
    describe,
    in_form_of,
    log_fault,
    openai_error,
)
from agentrt.serving.frontend.bounds import calls_of
from agentrt.serving.frontend.callers import RequestCaller
from agentrt.serving.frontend.conversations import (
    MESSAGES,
    RESPONSES,
    AnswerReader,
    conversation,
    items,
    tools_of,
)
from agentrt.serving.frontend.left_out import left_out_header
from agentrt.serving.frontend.response_answers import AnswerEdit
from agentrt.serving.frontend.responses import Finished, ResponseStore
from agentrt.serving.frontend.retries import Tries, Try
from agentrt.serving.frontend.server_tools import ServedTool, ToolLoop
from agentrt.serving.keep_alive import STREAM, ping_of, send_now
from agentrt.serving.programs.client_programs import RequestEntry
from agentrt.serving.programs.conversation import chain
from agentrt.serving.programs.hints import read_hints
from agentrt.serving.programs.identity import CLAIMED, read_claim
from agentrt.serving.server import Server

_LOG = logging.getLogger(__name__)
_OK = 200
_ERROR = b"event: error"
_UNDER_WAY = ("queued", "in_progress")
"""The statuses of a response that is still being generated."""
_BEFORE = {RESPONSES: 2}
"""The number of stream events that vLLM sends before the model call has begun, by path."""
_BATCH = 64
"""Maximum number of stream pieces that are collected before they are parsed together."""
NO_CONNECTION = "no_connection"
"""The entry in the state of a request that the server makes itself, without a connection."""
_PIECE = 256
"""Number of messages that are hashed before other requests get a turn. With 1 kB in each message,
this takes 0.6 ms.
"""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request of ``tenant`` at ``path`` that makes model calls, from its start to its end.

    ``chat`` is the body as the client sent it, from which the conversation is recognised.
    ``fields`` is the body before `response_answers.prepare` makes it the body for vLLM. ``served``
    are the tools that this server runs for the request, by name. ``tries`` has the requests in
    flight that a retry may replace.

    In the Responses API, ``before`` are the items of the chat that the request continues, and
    ``edit`` converts vLLM's answer into the form that the client expects.
    """

    server: Server
    store: ResponseStore
    tries: Tries
    tenant: str
    path: str
    fields: Mapping[str, Any]
    chat: Mapping[str, Any]
    edit: AnswerEdit | None = None
    before: Sequence[Any] = ()
    served: Mapping[str, ServedTool] = field(default_factory=dict)
    calls: int = field(init=False)
    _entry: RequestEntry = field(init=False)
    _caller: RequestCaller = field(init=False)
    _answer: AnswerReader = field(init=False)
    _start: Message = field(init=False)
    _body: bytearray = field(default_factory=bytearray)
    _pieces: int = 0
    _reads: int = 0
    _size: int = 0
    _try: Try | None = None
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _early: asyncio.TimerHandle | None = None
    _is_early: bool = False
    _is_stream: bool = False
    _is_left: bool = False
    _is_shared: bool = False

    def __post_init__(self) -> None:
        self.calls = calls_of(self.path, self.fields)
        self._answer = AnswerReader(self.path, self.calls)

    async def run(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer the request with ``app``, as calls of its program.

        Before the answer begins, raises `BusyError` if the tenant is at a limit. Raises `ApiError`
        if the program has passed its deadline or its limit of calls, and for an invalid header or
        field about the program.
        """
        hashes = await self._hashes()
        digest, now = hashes[-1] if hashes else b"", asyncio.get_running_loop().time()
        self._try = await self.tries.begin(self, scope, self.tenant, digest, now)
        try:
            self._entry = self._enter(scope, hashes)
            caller = self._caller = RequestCaller(self.server.runtime, self._entry)
        except BaseException:
            self._end_try()
            raise

        self._order_tools(scope)
        app = self._with_tools(app, scope)

        # A response in the background does not depend on its client's connection.
        is_background = self.path == RESPONSES and bool(self.fields.get("background"))

        async def receive_watched() -> Message:
            message = await receive()
            caller.is_gone = message["type"] == "http.disconnect" and not is_background
            return message

        def disconnected(gone: object) -> None:
            caller.is_gone = True

        gone: asyncio.Future[None] | None = None if is_background else scope.get(GONE)
        if gone is not None:
            gone.add_done_callback(disconnected)

        self._keep_open(scope, send)
        try:
            with calling(caller):
                await app(scope, receive_watched, self._sending(send))
        except Exception as error:
            if self._is_early and self.fields.get("stream") is not True:
                self._break_off(str(error))
                return
            if not self._is_stream:
                raise
            # On an error vLLM cuts a Responses stream off. The other APIs end with an error event.
            last = broken_off(self.path, caller.error or error)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            if gone is not None:
                gone.remove_done_callback(disconnected)
            if self._early is not None:
                self._early.cancel()
            if not self._goes_on(app):
                await caller.close()
                self._leave()
            self._end_try()

    def _keep_open(self, scope: Scope, send: Send) -> None:
        """Begin the answer early if vLLM does not begin it in time."""
        keep_alive_s, early_s = self.server.keep_alive_s, self.server.early_s
        later = asyncio.get_running_loop().call_later
        if not keep_alive_s:
            return
        if self.fields.get("stream") is True:
            self._early = later(keep_alive_s, self._begin_early, send)
        elif early_s and not scope["state"].get(NO_CONNECTION):
            self._early = later(early_s, self._begin_whole, send)

    def _sending(self, send: Send) -> Send:
        """Return ``send`` wrapped so that the answer is parsed and edited while it is sent."""

        def send_watched(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                self._begin(message)
                if self._is_early and message["status"] == _OK:
                    return _nothing()
            elif self._start["status"] == _OK:
                if self.edit is not None:
                    self._edit(self.edit, message)
                # Most pieces are only collected, without a further function for each token.
                body = message["body"]
                if (
                    self._pieces < _BATCH
                    and self._is_stream
                    and not self._is_left
                    and self.path != MESSAGES
                    and self._answer.end
                    and self._answer.end not in body
                    and not self._caller.is_gone
                ):
                    self._body += body
                    self._pieces += 1
                    self._reads += 1
                elif not self._is_left:
                    self._read(message)
            if self._start["status"] != _OK:
                return self._refuse(message, send)
            return send(message)

        return send_watched

    async def supersede(self) -> None:
        """Cancel this try because the client has sent the request again, and wait for its end.

        The connection of this try may have been cut in a way that this server cannot see.
        """
        self._caller.call_off(SupersededError())
        await self._over.wait()

    def _end_try(self) -> None:
        """Record the end of this try, because the client may send the request again."""
        if self._try is not None:
            own, self._try = self._try, None
            start: Message = getattr(self, "_start", {})
            caller: RequestCaller | None = getattr(self, "_caller", None)
            failed = start.get("status") != _OK or caller is None or caller.failed_or_left
            self.tries.end(own, asyncio.get_running_loop().time(), failed=failed)
            self._over.set()

    # -- the request -------------------------------------------------------------------

    def _enter(self, scope: Scope, hashes: list[bytes]) -> RequestEntry:
        sent = scope["state"]["headers"]
        headers = {
            name.decode("latin-1"): sent[name].decode("latin-1") for name in CLAIMED & sent.keys()
        }
        claim = read_claim(headers, read_hints(self.fields))
        tenants = self.server.tenants
        tenants.enter(self.tenant, self.calls)
        try:
            entry = self.server.programs.enter(self.tenant, claim, hashes)
        except BaseException:
            tenants.leave(self.tenant, self.calls)
            raise
        if not (run := entry.program.run).first_words:
            fields = self.fields
            texts = fields.get("messages") or fields.get("input") or fields.get("prompt")
            run.first_words = first_words(texts)
        return entry

    def _order_tools(self, scope: Scope) -> None:
        """Put the tools of earlier requests first, in their earlier order, and new tools last.

        A changed order would change the prompt's beginning and miss the prefix cache.
        """
        fields = scope.get(FIELDS) or {}
        tools = fields.get("tools")
        if isinstance(tools, list):
            ordered = self._entry.program.in_order(tools)
            if ordered is not tools:
                scope[FIELDS] = {**fields, "tools": ordered}

    def _with_tools(self, app: ASGIApp, scope: Scope) -> ASGIApp:
        """Return ``app`` wrapped in a loop that runs the server's tools between model calls, or
        ``app`` itself if the request has no such tools.
        """
        if not self.served or FIELDS not in scope:
            return app
        return ToolLoop(app, self.served, self._caller.tool)

    async def _hashes(self) -> list[bytes]:
        """Return the hashes of the request's messages. If the request continues a stored response,
        the hash of that response's chat comes first.

        Pauses between the pieces of a long chat, so that other requests are answered meanwhile.
        """
        before = self.fields.get("previous_response_id")
        kept = self.store.get(self.tenant, before) if isinstance(before, str) else None
        messages = conversation(self.path, self.chat)
        hashes = [] if kept is None or kept.end is None else [kept.end]
        for start in range(0, len(messages), _PIECE):
            if start:
                await pause()
            piece = messages[start : start + _PIECE]
            hashes += chain(piece, hashes[-1] if hashes else b"")
        return hashes

    # -- the answer --------------------------------------------------------------------

    def _begin_early(self, send: Send) -> None:
        """Send the head of a stream and a ping before vLLM begins the stream, to keep the
        connection open.

        This happens when vLLM has not begun in time, for example behind long prompts. An error
        that comes later is sent as an event of the stream.
        """
        headers = [(b"content-type", STREAM + b"; charset=utf-8")]
        start: Message = {"type": "http.response.start", "status": _OK, "headers": headers}
        self._begin(start)
        self._is_early = send_now(send(start))
        alive = {"type": "http.response.body", "body": ping_of(self.path), "more_body": True}
        send_now(send(alive))

    def _begin_whole(self, send: Send) -> None:
        """Send the head of a JSON answer early, and then newlines until the answer is ready.

        JSON may begin with newlines, and they keep the connection open.
        """
        headers = [(b"content-type", b"application/json")]
        start: Message = {"type": "http.response.start", "status": _OK, "headers": headers}
        self._begin(start)
        self._is_early = send_now(send(start))
        self._say_alive(send)

    def _say_alive(self, send: Send) -> None:
        send_now(send({"type": "http.response.body", "body": b"\n", "more_body": True}))
        later = asyncio.get_running_loop().call_later
        self._early = later(self.server.keep_alive_s, self._say_alive, send)

    def _break_off(self, why: str) -> None:
        """Leave a JSON answer without its end, so that the server closes the connection.

        The status 200 has been sent already, and no client must take an error for an answer. A
        client whose connection was cut sends the request again, and gets the error's own status.
        """
        _LOG.warning(
            "%s: a request failed after the first part of its answer was sent, so its connection "
            "was closed: %s",
            self.path,
            why,
        )

    def _begin(self, start: Message) -> None:
        """Add headers to the head of an answer, such as the run's id. The head of an error stays as
        it is.
        """
        if self._early is not None:
            self._early.cancel()
        self._start = start
        if start["status"] == _OK:
            headers = start["headers"] = list(start.get("headers", ()))
            if self.edit is not None:
                headers[:] = [header for header in headers if header[0] != b"content-length"]
            for name, value in headers:
                if name == b"content-type":
                    self._is_stream = value[: len(STREAM)] == STREAM
            run = self._entry.program.run.id.encode("ascii", "replace")
            headers += [(b"x-agentrt-run", run), (b"x-agentrt-program", run)]
            if (limit := self._caller.max_tokens) is not None:
                headers.append((b"x-agentrt-max-tokens", str(limit).encode("ascii")))
            if self._caller.parts_left_out:
                headers.append(left_out_header(self._caller.parts_left_out))

    def _edit(self, edit: AnswerEdit, message: Message) -> None:
        """Convert a piece of vLLM's answer into the form that the client expects."""
        if self._is_stream:
            message["body"] = edit.events(message["body"])
        elif not message.get("more_body", False):
            message["body"] = edit.whole(message["body"])

    def _read(self, message: Message) -> None:
        """Parse a piece of the answer. The last piece ends the request's calls, unless the response
        is generated in the background.
        """
        body = message["body"]
        if self.path == RESPONSES:
            self._size += len(body)
        if self._caller.is_gone:  # the client has disconnected, and vLLM ends the answer
            return
        self._body += body
        if self._is_stream:
            self._pieces += 1
            self._reads += 1
            if self._answer.end in body or self._pieces > _BATCH:
                self._answer.feed(bytes(self._body))
                self._body.clear()
                self._pieces = 0
            if self.path == MESSAGES and body.startswith(_ERROR) and self._caller.error:
                # vLLM's Messages converter does not know errors, and sends a long parsing error.
                message["body"] = broken_off(self.path, self._caller.error)
        elif not message.get("more_body", False):
            self._answer.read(bytes(self._body))
        self._share_edit()
        if self._answer.is_over and not self.fields.get("background"):
            self._leave()  # before the client can send a request that continues this answer

    async def _refuse(self, message: Message, send: Send) -> None:
        """Collect vLLM's error answer, and send it in clearer words after its last message."""
        self._body += message.get("body", b"")
        if message is self._start or message.get("more_body", False):
            return
        status = self._start["status"]
        body = clearer(self.path, status, bytes(self._body))
        if self._is_early and self.fields.get("stream") is not True:
            self._break_off(body.decode(errors="replace"))
            return
        if self._is_early:
            await send(
                {"type": "http.response.body", "body": last_event(self.path, from_json(body))}
            )
            return
        head = with_length(self._start, body)
        await send({**head, "headers": [*head["headers"], *retry_headers(status)]})
        await send({"type": "http.response.body", "body": body})

    def _leave(self) -> None:
        """End the request in its program, and record the ends of its chats.

        Later requests that continue the chats are recognised by these ends.
        """
        if self._is_left:
            return
        self._is_left = True
        hashes, replies = self._entry.hashes, self._answer.replies
        before = hashes[-1] if hashes else b""
        ends = [chain(reply, before)[-1] for reply in replies if reply] if hashes else []
        is_summary = self.edit is not None and self.edit.is_compaction
        summary = chain(replies[0])[-1] if is_summary and replies and replies[0] else None
        tools = tools_of(replies[0]) if replies else []
        is_cut = self._caller.is_gone and self._reads <= _BEFORE.get(self.path, 0)
        self.server.programs.leave(self._entry, ends, tools, is_cut=is_cut, summary=summary)
        self.server.tenants.leave(self.tenant, self.calls)
        if self.path == RESPONSES and self._answer.id:
            self._keep(ends[0] if ends else None)

    def _keep(self, end: bytes | None) -> None:
        """Store the response, unless the client asked not to store it."""
        client_input, output = self.fields.get("input"), self._answer.response.get("output")
        own = (
            client_input
            if isinstance(client_input, list)
            else [{"role": "user", "content": client_input}]
        )
        finished = Finished(
            self._answer.id,
            self.fields.get("model"),
            self._answer.response,
            [*own, *(output if isinstance(output, list) else ())],
            self.fields.get("previous_response_id") if self.before else None,
            end,
            self._size,
        )
        is_whole = self._answer.response.get("status") not in _UNDER_WAY
        self.store.finish(self.tenant, finished, self.before, keeps=is_whole)

    # -- responses in the background ---------------------------------------------------

    def _share_edit(self) -> None:
        """Let later requests that read a response in the background get it in the same form. This
        happens before the client learns the response's id.
        """
        if self.edit is None or not self.fields.get("background") or self._is_shared:
            return
        if (kept := self.store.get(self.tenant, self._answer.id)) is not None:
            kept.edit, self._is_shared = self.edit, True

    def _goes_on(self, app: Any) -> bool:
        """Return whether vLLM generates the response in the background, after this request has
        ended.

        If so, the request's calls end when the background task ends.
        """
        if self.path != RESPONSES or not self.fields.get("background"):
            return False
        handler = app.state.openai_serving_responses
        task: asyncio.Task[Any] | None = handler.background_tasks.get(self._answer.id)
        if task is None:
            self._read_stored()
            return False
        self.server.under_way.add(task)

        def ended(done: asyncio.Task[Any]) -> None:
            self.server.under_way.discard(done)
            self._caller.end_deadline()
            self._read_stored()
            self._leave()

        task.add_done_callback(ended)
        return True

    def _read_stored(self) -> None:
        """Read the response that vLLM has stored, if the client's answer has no end: it was sent
        before the response ended, or is a stream that a cancellation or a disconnect cut off.
        """
        if self._answer.response.get("status") not in _UNDER_WAY:
            return
        kept = self.store.get(self.tenant, self._answer.id)
        response = None if kept is None else kept.objects.get("response")
        if response is not None:
            whole = response.model_dump(mode="json", by_alias=True)
            if self.edit is not None:
                whole = self.edit.response(whole)
            self._answer.response = whole
            self._answer.replies = [list(items(whole.get("output")))]


# -- refusals in the words that an API's clients know --------------------------------------


_TOO_LONG = re.compile("maximum context length|exceeds the max_model_len")
_CODE = "context_length_exceeded"
_RETRY_S = b"5"


def clearer(path: str, status: int, body: bytes) -> bytes:
    """Return the body of an error answer in the words that the API's clients know.

    Agents shorten their context if a prompt was too long. They recognise this error by OpenAI's
    error code, or by the words of Anthropic's message.
    """
    try:
        answer = from_json(body)
        error = answer["error"] if "error" in answer else {"message": answer["detail"]}
        text = str(error["message"])
    except (ValueError, TypeError, KeyError):
        return body
    is_too_long = status == 400 and bool(_TOO_LONG.search(text))
    if path.startswith(MESSAGES):
        text = f"prompt is too long: {text}" if is_too_long else text
        answer = in_form_of(path, openai_error(status, text), status)
    elif is_too_long and "error" in answer:
        error["code"] = _CODE
    else:
        return body
    return json.dumps(answer, ensure_ascii=False).encode()


def retry_headers(status: int) -> list[tuple[bytes, bytes]]:
    """Return the ``Retry-After`` header for an error answer with status 503, after which a retry
    may succeed. Return no headers for any other status.
    """
    return [(b"retry-after", _RETRY_S)] if status == 503 else []


async def _nothing() -> None:
    """Send nothing, in place of a message that has been sent already."""


def broken_off(path: str, error: Exception) -> bytes:
    """Log an error if it is the server's fault, and return it as the event that ends a stream."""
    status, body, _ = describe(error)
    log_fault(status, error)
    return last_event(path, in_form_of(path, body))


def last_event(path: str, body: dict[str, Any]) -> bytes:
    """Return an error ``body``, in the format of the API at ``path``, as a stream's last event."""
    if path == RESPONSES:
        error = body["error"]
        assert isinstance(error, dict)
        code = error["code"] or error["type"]
        body = {"type": "error", "code": code, "message": error["message"], "param": None}
    head = "event: error\n" if body.get("type") == "error" else ""
    return f"{head}data: {json.dumps(body)}\n\n".encode()
