"""Takes a request for calls from its door to the runtime, and back as an answer or a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from sse_starlette import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrt.errors import NotServedError
from agentrt.request import CallSpec, Message, Reply
from agentrt.serving.middleware import tenant_of
from agentrt.serving.openai.answers import chat_message
from agentrt.serving.openai.calls import Answering, Calls, Piece
from agentrt.serving.programs.client_programs import Entry
from agentrt.serving.programs.conversation import chain
from agentrt.serving.programs.errors import client_gone, describe, log_fault
from agentrt.serving.programs.identity import read_claim
from agentrt.serving.programs.tasks import ClientGoneError
from agentrt.serving.server import Server


class Events(Protocol):
    """Turns pieces into a stream's events."""

    def of(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """The events of a piece."""

    def last(self) -> Iterator[dict[str, Any]]:
        """What follows when all is over."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for calls: its specs, the chat for whoever looks for its program, and how it is
    answered, whole or in events.
    """

    specs: Sequence[CallSpec]
    chat: Sequence[Message]
    session_id: str | None
    in_form: bool
    whole: Callable[[Sequence[Reply]], dict[str, Any]]
    events: Events | None


class RequestHandler:
    """What the routes of the OpenAI API share."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.calls = Calls(server.runtime)

    @property
    def native_tools(self) -> bool:
        """Whether the engine's text is the answer's own, whatever tools a call has."""
        return self.server.runtime.executor.info.native_tools

    def model(self, asked: str) -> str:
        """The model's name. Raises `NotServedError` for one that is not served."""
        if asked not in self.server.models:
            raise NotServedError(
                f"this server does not serve model {asked!r}; it serves "
                f"{', '.join(self.server.models)}"
            )
        return asked

    async def answer(self, request: Request, ask: Ask) -> Response:
        """The answer to a request, when its calls are over or its first piece is there."""
        tenant, specs = tenant_of(request), ask.specs
        claim = read_claim(request.headers, ask.session_id)
        self.server.tenants.enter(tenant, len(specs))
        try:
            entry = self.server.programs.enter(tenant, claim, chain(ask.chat))
        except BaseException:
            self.server.tenants.leave(tenant, len(specs))
            raise
        headers = {"x-agentrt-program": _ascii(entry.program.run.id)}
        try:
            if ask.events is None:
                return await self._whole(request, ask, entry, headers)
            return await self._stream(request, ask, ask.events, entry, headers)
        except ClientGoneError:
            return client_gone()

    async def _whole(
        self, request: Request, ask: Ask, entry: Entry, headers: dict[str, str]
    ) -> Response:
        replies: list[Reply] = []
        with self._leaving(ask, entry, replies):
            work = self.calls.replies(entry, ask.specs)
            replies += await self.calls.tasks.unless_gone(request, work)
        return JSONResponse(ask.whole(replies), headers=headers)

    async def _stream(
        self, request: Request, ask: Ask, events: Events, entry: Entry, headers: dict[str, str]
    ) -> Response:
        replies: dict[int, Reply] = {}

        def ended() -> None:
            with self._leaving(ask, entry, [replies[index] for index in sorted(replies)]):
                pass

        answering = self.calls.stream(entry, ask.specs, ended)
        try:
            # A call that is refused has no stream, but a status.
            first = await self.calls.tasks.unless_gone(request, answering.get())
        except BaseException:
            answering.stop()
            raise
        content = _events(answering, first, events, replies)
        return EventSourceResponse(content, headers=headers, sep="\n")

    @contextmanager
    def _leaving(self, ask: Ask, entry: Entry, replies: Sequence[Reply]) -> Iterator[None]:
        """After the body the calls are over, and where their chats stand is known."""
        try:
            yield
        finally:
            before = entry.hashes[-1] if entry.hashes else b""
            messages = [chat_message(reply, in_form=ask.in_form) for reply in replies]
            ends = [chain([message], before)[0] for message in messages if entry.hashes]
            tools = [reply.tool_calls[0].name if reply.tool_calls else "" for reply in replies]
            self.server.programs.leave(entry, ends, tools)
            self.server.tenants.leave(entry.program.tenant, len(ask.specs))


async def _events(
    answering: Answering, first: Piece | None, events: Events, replies: dict[int, Reply]
) -> AsyncGenerator[dict[str, str], None]:
    """The stream, from its first piece to its end, or to what went wrong."""
    piece = first
    try:
        while piece is not None:
            if piece.chunk.reply is not None:
                replies[piece.choice] = piece.chunk.reply
            for event in events.of(piece):
                yield {"data": _compact(event)}
            piece = await answering.get()
        for event in events.last():
            yield {"data": _compact(event)}
        yield {"data": "[DONE]"}
    except Exception as error:
        status, body, _ = describe(error)
        log_fault(status, error)
        yield {"data": _compact(body)}
    finally:
        answering.stop()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _ascii(value: str) -> str:
    return value.encode("ascii", "replace").decode("ascii")
