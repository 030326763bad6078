"""Causes that stop a call: a disconnect, the program's end, a deadline, a drain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import Response

from agentrt import Context, Runtime, program
from agentrt.errors import CallTimeoutError
from agentrt.executors.base import Chunk
from agentrt.request import Call, CallSpec
from agentrt.serving.frontend.callers import RequestCaller
from agentrt.serving.programs.api import api as programs
from agentrt.serving.programs.client_programs import ClientPrograms
from agentrt.serving.programs.identity import Claim
from agentrt.serving.server import ServedProgram, Server
from agentrt.serving.tenants import Limits
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.local import MODEL, WAIT_S, Held, LocalServer, open_server

CHAT = "/v1/chat/completions"


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "count"}], **more}


async def is_rid_of(local: LocalServer) -> None:
    """The engine has no call any more, and the server no task and no call."""
    await local.until(lambda: not local.engine.open)
    await local.until(lambda: not any(row.calls for row in local.runtime.table))
    await local.until(lambda: local.server.tenants.calls("default") == 0)
    assert (await local.runtime.executor.snapshot())["tenants"] == {}


async def test_a_client_that_disconnects_while_waiting_cancels_its_calls() -> None:
    async with open_server(kind=Held) as local:
        async with httpx.AsyncClient(base_url=local.url, timeout=60) as client:
            asking = asyncio.create_task(client.post(CHAT, json=body(n=3), timeout=WAIT_S))
            await local.until(lambda: len(local.engine.open) == 3)
            asking.cancel()
            await asyncio.wait([asking])
        await is_rid_of(local)


async def test_a_client_that_leaves_a_stream_cancels_its_calls() -> None:
    async with open_server(kind=Held) as local:
        async with (
            httpx.AsyncClient(base_url=local.url, timeout=60) as client,
            client.stream("POST", CHAT, json=body(stream=True, n=3), timeout=WAIT_S) as answer,
        ):
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if '"content":"one"' in line:
                    break
            assert local.engine.open
        await is_rid_of(local)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_stopped", [False, True], ids=["disconnected", "cancelled"])
async def test_a_request_of_another_asgi_server_ends_its_calls(
    stream: bool, is_stopped: bool
) -> None:
    """Its scope has no future for the end of the connection, only `receive` tells."""
    leaves, sent = asyncio.Event(), list[Any]()
    raw = json.dumps(body(stream=stream)).encode()
    messages = iter([{"type": "http.request", "body": raw, "more_body": False}])

    async def receive() -> Any:
        for message in messages:
            return message
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {b"content-type": b"application/json"}
    state = {"tenant": "default", "operator": True, "request_id": "r", "headers": headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": CHAT,
        "root_path": "",
        "query_string": b"",
        "headers": list(headers.items()),
        "state": state,
    }
    async with open_server(kind=Held) as local:
        front: Any = local.server.frontend
        asking = asyncio.create_task(front(scope, receive, send))
        await local.engine.began.wait()
        if is_stopped:
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
        else:
            leaves.set()
            await asking
        await is_rid_of(local)
        assert not any(b'finish_reason":"stop' in message.get("body", b"") for message in sent)


@pytest.mark.parametrize("kind", ["answers", "disconnects"])
async def test_a_middleware_of_the_user_ends_calls(kind: str) -> None:
    """It answers in place of the application, or `receive` says that the client has disconnected,
    while the connection is open.
    """
    ends = asyncio.Event()

    async def answer(request: Any, call_next: Any) -> Response:
        asking = asyncio.ensure_future(call_next(request))
        await ends.wait()
        asking.cancel()
        return Response(status_code=504)

    def disconnecting(app: Any) -> Any:
        async def middleware(scope: Any, receive: Any, send: Any) -> None:
            is_read = False

            async def receive_until() -> Any:
                nonlocal is_read
                if is_read:
                    await ends.wait()
                    return {"type": "http.disconnect"}
                message = await receive()
                is_read = not message.get("more_body", False)
                return message

            await app(scope, receive_until, send)

        return middleware

    answering = partial(BaseHTTPMiddleware, dispatch=answer)
    middleware = answering if kind == "answers" else disconnecting
    async with (
        open_server(kind=Held, middleware=middleware) as local,
        httpx.AsyncClient(base_url=local.url, timeout=WAIT_S) as client,
    ):
        asking = asyncio.create_task(client.post(CHAT, json=body()))
        await local.engine.began.wait()
        ends.set()
        answered = await asking
        assert (answered.status_code, answered.text) in ((504, ""), (200, "null"))
        await is_rid_of(local)


async def test_a_client_that_disconnects_before_admission_leaves_the_queue() -> None:
    limits = Limits(concurrency=1)
    async with open_server(kind=Held, limits=limits, is_shared=True) as local:
        first = asyncio.create_task(local.chat("first"))
        await local.engine.began.wait()
        async with httpx.AsyncClient(base_url=local.url, timeout=60) as client:
            asking = asyncio.create_task(client.post(CHAT, json=body(), timeout=WAIT_S))
            await local.until(lambda: local.server.tenants.calls("default") == 2)
            asking.cancel()
            await asyncio.wait([asking])
        await local.until(lambda: local.server.tenants.calls("default") == 1)
        assert len(local.engine.calls) == 1
        local.engine.go.set()
        await first
        await is_rid_of(local)


async def test_an_ended_run_cancels_its_calls() -> None:
    async with open_server(kind=Held) as local:
        session = (await local.client.post("/v1/client-runs")).json()["id"]
        said = {"x-agentrt-run": session}
        asking = [
            asyncio.create_task(local.client.post(CHAT, json=body(**more), headers=said))
            for more in ({}, {"stream": True})
        ]
        await local.until(lambda: len(local.engine.open) == 2)
        await local.client.delete(f"/v1/client-runs/{session}")
        whole, stream = [await task for task in asking]
        assert whole.status_code == 409
        assert "its run chat-1 was ended" in whole.json()["error"]["message"]
        errors = [line for line in stream.text.split("\n\n") if '"error"' in line]
        told = [json.loads(one.removeprefix("data: "))["error"]["code"] for one in errors]
        assert told == [409]
        assert '"finish_reason":"stop"' not in stream.text
        await is_rid_of(local)


@pytest.mark.parametrize("seconds", ["0.05", "0.000001"], ids=["running", "not begun"])
async def test_a_call_ends_at_its_programs_deadline(seconds: str) -> None:
    async with open_server(kind=Held) as local:
        said = {"x-agentrt-deadline": seconds, "x-agentrt-run": "p"}
        late = await local.client.post(CHAT, json=body(), headers=said)
        assert late.status_code == 408
        assert "passed its deadline" in late.json()["error"]["message"]
        again = await local.client.post(CHAT, json=body(), headers=said)
        assert (again.status_code, again.json()["error"]["code"]) == (408, "deadline_exceeded")
        await is_rid_of(local)


class Silent(ScriptedExecutor):
    """An executor whose calls produce no output."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        await asyncio.Event().wait()
        yield Chunk("")


async def test_a_client_that_reads_after_the_deadline_gets_the_error_then() -> None:
    """The time is up while nobody reads: whoever waits for a chunk later is not left alone."""
    loop = asyncio.get_running_loop()
    async with Runtime(Silent(), clock=lambda: 0.0) as runtime:
        programs = ClientPrograms(runtime, lambda tenant: Limits(), idle_s=900, silent_idle_s=120)
        caller = RequestCaller(runtime, programs.enter("a", Claim(deadline_s=1e-9), ()))
        chunks = caller.chunks(CallSpec(), stream=True)
        passed = loop.create_future()
        loop.call_later(0.0, passed.set_result, None)  # after the deadline's own timer
        await passed
        reading = asyncio.ensure_future(anext(chunks))
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await asyncio.wait_for(reading, WAIT_S)
        assert isinstance(caller.failed(cancelled.value), CallTimeoutError)
        await caller.close()


async def test_a_draining_server_finishes_running_calls_and_accepts_no_new_calls() -> None:
    async with open_server(kind=Held) as local:
        running = asyncio.create_task(local.chat("finish me"))
        await local.engine.began.wait()
        draining = asyncio.create_task(local.listener.drain(local.server, WAIT_S))
        await local.until(lambda: local.server.draining)
        async with httpx.AsyncClient(base_url=local.url, timeout=60) as client:
            refused = await client.post(CHAT, json=body())
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["error"]["code"] == "stopping"
            assert (await client.get("/v1/models")).status_code == 200
        assert not draining.done()
        local.engine.go.set()
        assert (await running)["choices"][0]["message"]["content"] == "one two three"
        await draining


@program(name="ask")
async def ask(ctx: Context) -> str:
    return (await ctx.llm("count")).text


async def test_a_draining_server_finishes_program_runs_that_nobody_waits_for() -> None:
    async with open_server(kind=Held, served={"ask": ServedProgram(ask, "here.py")}) as local:
        at = "/v1/programs/ask/runs"
        run = (await local.client.post(at, json={"wait": False})).json()
        await local.engine.began.wait()
        draining = asyncio.create_task(local.listener.drain(local.server, WAIT_S))
        await local.until(lambda: local.server.draining)
        assert not draining.done()
        assert (await local.client.get(f"{at}/{run['id']}")).json()["state"] == "running"
        live = local.runtime.runs[run["id"]]
        local.engine.go.set()
        await draining
        assert live.result == "one two three"


async def test_a_drain_does_not_wait_for_ever() -> None:
    async with open_server(kind=Held) as local:
        running = asyncio.create_task(local.client.post(CHAT, json=body()))
        await local.engine.began.wait()
        async with asyncio.timeout(WAIT_S):
            await local.listener.drain(local.server, 0.05)
        await asyncio.wait([running])
        await local.until(lambda: not local.engine.open)


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "count"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "count"}], "max_tokens": 9}),
        ("/v1/responses", {"input": "count"}),
    ],
)
async def test_a_server_that_stops_at_once_tells_its_clients_why(
    path: str, more: dict[str, Any]
) -> None:
    """After a second signal, the APIs close while their last answers are still sent."""
    apis = AsyncExitStack()

    @asynccontextmanager
    async def closed_early(server: Server) -> AsyncIterator[APIRouter]:
        yield await apis.enter_async_context(programs(server))

    says = "the server is stopping: the call was cancelled before its end"
    async with open_server(kind=Held, apis=[closed_early]) as local:
        at, asked = f"{local.url}{path}", {"model": MODEL, **more}
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            whole = asyncio.create_task(client.post(at, json=asked))
            stream = asyncio.create_task(client.post(at, json={**asked, "stream": True}))
            await local.until(lambda: len(local.engine.open) == 2)
            await apis.aclose()
            refused, ended = await whole, await stream
        assert refused.status_code == 503
        assert says in refused.json()["error"]["message"]
        [last] = [json.loads(line[6:]) for line in ended.text.splitlines() if says in line]
        if path == CHAT:
            assert last["error"]["code"] == 503
        await is_rid_of(local)
