"""A stream that waits says that it lives, at every door, and is a whole stream all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message

from agentrt import Runtime
from agentrt.executors.base import Chunk
from agentrt.request import Call, CallReport
from agentrt.serving.frontend.conversations import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from agentrt.serving.frontend.dispatch import FrontendApp
from agentrt.serving.frontend.retries import RETRY
from agentrt.serving.keep_alive import COMMENT, PING, KeepAlive
from agentrt.serving.programs.api import api as programs
from agentrt.serving.server import Server
from agentrt.serving.tenants import Tenants
from tests.doubles.scripted import ScriptedExecutor
from tests.doubles.scripted_engine import ScriptedEngine
from tests.serving.frontend.test_dispatch import Front
from tests.serving.frontend.test_identity import ask, caller_of
from tests.serving.local import SAYS, open_server
from tests.serving.watchdog import opened_app

pytestmark = pytest.mark.engine

APIS = [CHAT, COMPLETIONS, MESSAGES, RESPONSES]
SOON_S = 0.02
CONNECTIONS = Path("/proc/net/tcp")


class Waiting(ScriptedEngine):
    """An executor whose calls wait without output until they are released."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.go = asyncio.Event()
        self.open: list[str] = []
        self.most = 0

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.open.append(call.call_id)
        self.most = max(self.most, len(self.open))
        try:
            await self.go.wait()
            made = ScriptedEngine.generate(self, call, stream=stream)
            async with contextlib.aclosing(made) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.open.remove(call.call_id)


def sign_of(path: str) -> bytes:
    return PING if path == MESSAGES else COMMENT


async def until_alive(answer: httpx.Response, path: str, signs: int = 3) -> tuple[bytes, Any]:
    """Return the stream up to its ``signs``-th comment, and the rest of the stream."""
    parts, came = answer.aiter_raw(), b""
    while came.count(sign_of(path)) < signs:
        came += await anext(parts)
    return came, parts


@pytest.mark.parametrize("path", APIS)
async def test_a_waiting_stream_sends_comments(path: str) -> None:
    async with open_server(kind=Waiting, keep_alive_s=SOON_S) as local:
        body = {**ask(path, "hi"), "stream": True}
        async with local.client.stream("POST", path, json=body) as answer:
            assert answer.headers["x-agentrt-program"]
            came, parts = await until_alive(answer, path)
            local.engine.go.set()
            came += b"".join([part async for part in parts])
        waited = came.replace(sign_of(path), b"")
        assert b": " not in waited.splitlines()[0][:2]
        plain = await local.client.post(path, json=body)
        assert waited.count(b"\n\n") == plain.content.replace(sign_of(path), b"").count(b"\n\n")


async def test_a_resumed_stream_sends_comments_before_its_first_new_event() -> None:
    """The server reads the events before it, too, but the client gets nothing of them."""
    tools = [{"type": "custom", "name": "note"}]
    async with open_server(kind=Waiting, keep_alive_s=SOON_S) as local:
        body = {**ask(RESPONSES, "hi"), "tools": tools, "background": True, "stream": True}
        async with local.client.stream("POST", RESPONSES, json=body) as answer:
            came, _ = await until_alive(answer, RESPONSES)
            events = [json.loads(line[6:]) for line in came.splitlines() if line[:6] == b"data: "]
            at = f"{RESPONSES}/{events[0]['response']['id']}"
            params = {"stream": "true", "starting_after": events[-1]["sequence_number"]}
            async with local.client.stream("GET", at, params=params) as resumed:
                async with asyncio.timeout(30):
                    came, rest = await until_alive(resumed, RESPONSES)
                assert b"data: " not in came
                local.engine.go.set()
                assert b"response.completed" in b"".join([part async for part in rest])


@pytest.mark.parametrize("keep_alive_s", [0.0, 10.0])
@pytest.mark.parametrize("path", APIS)
async def test_a_client_that_splits_at_line_separators_gets_whole_events(
    path: str, keep_alive_s: float
) -> None:
    """httpx ends a line at these characters, as Python's ``splitlines`` does."""
    text, lines = "a\u2028b\u2029c\x85d", list[str]()
    async with open_server(lambda call: text, keep_alive_s=keep_alive_s) as local:
        body = {**ask(path, "hi"), "stream": True}
        async with local.client.stream("POST", path, json=body) as answer:
            lines += [line async for line in answer.aiter_lines()]
    assert {line.partition(":")[0] for line in lines} <= {"event", "data", ""}
    events = [line[6:] for line in lines if line.startswith("data: {")]
    assert not any(sign in event for event in events for sign in text if not sign.isascii())
    whole = "".join(map(str, map(json.loads, events)))
    assert all(repr(sign)[1:-1] in whole for sign in text)


@pytest.mark.parametrize("path", APIS)
async def test_without_an_interval_no_comment_is_sent(path: str) -> None:
    async with open_server(keep_alive_s=0) as local:
        answer = await local.client.post(path, json={**ask(path, "hi"), "stream": True})
        assert sign_of(path) not in answer.content


async def test_official_clients_ignore_the_comments() -> None:
    """OpenAI's SDK in both its APIs, and Anthropic's."""
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    async with (
        open_server(kind=Waiting, keep_alive_s=SOON_S) as local,
        contextlib.AsyncExitStack() as stack,
    ):
        openai = await stack.enter_async_context(
            AsyncOpenAI(base_url=f"{local.url}/v1", api_key="none")
        )
        anthropic = await stack.enter_async_context(
            AsyncAnthropic(base_url=local.url, api_key="none")
        )
        user: Any = [{"role": "user", "content": "hi"}]

        async def chat() -> str:
            stream = await openai.chat.completions.create(
                model="scripted", messages=user, stream=True
            )
            return "".join([(c.choices[0].delta.content or "") async for c in stream if c.choices])

        async def respond() -> str:
            async with openai.responses.stream(model="scripted", input="hi") as stream:
                async for _ in stream:
                    pass
                return str((await stream.get_final_response()).output_text)

        async def message() -> str:
            async with anthropic.messages.stream(
                model="scripted", messages=user, max_tokens=32
            ) as stream:
                return str(await stream.get_final_text())

        async def release() -> None:
            await local.until(lambda: len(local.engine.open) == 3)
            body = {**ask(CHAT, "hi"), "stream": True}  # by its third sign, the others have some
            async with local.client.stream("POST", CHAT, json=body) as answer:
                await until_alive(answer, CHAT)
            local.engine.go.set()

        said = await asyncio.gather(chat(), respond(), message(), release())
        assert list(said[:3]) == [SAYS] * 3


class Clock:
    """Timers that fire when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def later(self, delay: float, call: Callable[[], Any]) -> Timer:
        self.timers.append(Timer(self.now + delay, call))
        return self.timers[-1]

    def forward(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [one for one in self.timers if one.at <= end and not one.is_off]:
            first = min(due, key=lambda one: one.at)
            self.timers.remove(first)
            self.now = first.at
            first.call()
        self.now = end


class Timer:
    def __init__(self, at: float, call: Callable[[], Any]) -> None:
        self.at, self.call, self.is_off = at, call, False

    def cancel(self) -> None:
        self.is_off = True


def kept(path: str = CHAT) -> tuple[KeepAlive, Clock, list[bytes]]:
    clock, sent = Clock(), list[bytes]()

    async def send(message: Message) -> None:
        sent.append(message["body"])

    return KeepAlive(send, path, 10.0, clock.later), clock, sent


async def test_silence_is_never_longer_than_the_interval() -> None:
    alive, clock, sent = kept()
    clock.forward(10)
    assert sent == [COMMENT]
    clock.forward(30)
    assert sent == [COMMENT] * 4
    for _ in range(20):  # a token every three seconds: no sign between them
        clock.forward(3)
        alive.last, alive.idle = {"body": b"data: {}\n\n", "more_body": True}, 0
    assert sent == [COMMENT] * 4
    clock.forward(10)
    assert sent == [COMMENT] * 5
    alive.stop()
    clock.forward(100)
    assert sent == [COMMENT] * 5


async def test_no_comment_is_sent_within_an_event_or_after_the_end() -> None:
    alive, clock, sent = kept(MESSAGES)
    alive.last, alive.idle = {"body": b"data: {", "more_body": True}, 0
    clock.forward(100)
    assert sent == []
    alive.last, alive.idle = {"body": b"}\r\n\r\n", "more_body": True}, 0
    clock.forward(10)
    assert sent == [PING]
    alive.last, alive.idle = {"body": b"", "more_body": False}, 0
    clock.forward(100)
    assert sent == [PING]
    assert not clock.timers


async def test_a_client_that_does_not_read_gets_no_comments() -> None:
    clock, begun = Clock(), 0
    full = asyncio.Event()

    async def send(message: Message) -> None:
        nonlocal begun
        begun += 1
        await full.wait()
        raise AssertionError("a sign that waited was sent")

    alive = KeepAlive(send, CHAT, 10.0, clock.later)
    clock.forward(50)
    assert begun == 5
    full.set()
    await asyncio.sleep(0)
    alive.stop()


@pytest.mark.skipif(not CONNECTIONS.exists(), reason="needs Linux")
async def test_connections_are_probed_by_tcp() -> None:
    """A call that is not streamed has no byte before its answer."""
    async with open_server(kind=Waiting) as local:
        task = asyncio.create_task(local.client.post(CHAT, json=ask(CHAT, "hi")))
        await local.until(lambda: local.engine.open)
        port = f":{local.listener.port:04X}"
        rows = [line.split() for line in CONNECTIONS.read_text("ascii").splitlines()[1:]]  # noqa: ASYNC240
        timers = [row[5] for row in rows if row[1].endswith(port) and row[3] == "01"]
        assert timers
        assert all(timer.startswith("02:") for timer in timers)  # 02: a timer of keep-alive probes
        local.engine.go.set()
        assert (await task).status_code == 200


# -- before the stream begins --------------------------------------------------------------


async def early(
    path: str, answer: Callable[[asyncio.Event], Awaitable[Response]], **more: Any
) -> list[Message]:
    """What goes out of a server whose front end answers by ``answer``: it waits for an event, which
    comes when the client was told that its call lives.
    """
    alive, sent = asyncio.Event(), list[Message]()
    front = Front.of("big")

    async def answered() -> Response:
        return await answer(alive)

    front.app.add_api_route(path, answered, methods=["POST"], response_model=None)
    route = front.app.router.routes.pop()
    front.app.router.routes.insert(0, route)
    content = json.dumps({**ask(path, "hi"), **more, "model": "big"}).encode()
    given = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Message:
        if (message := next(given, None)) is not None:
            return message
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    async def send(message: Message) -> None:
        sent.append(message)
        if message.get("body", b"") == sign_of(path):
            alive.set()

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": headers}
    scope |= {"query_string": b"", "raw_path": path.encode(), "http_version": "1.1"}
    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ("big",), tenants=Tenants(time.monotonic), keep_alive_s=SOON_S)
        async with opened_app(server, [programs], FrontendApp(server, [front])) as app:
            await app(scope, receive, send)
        assert len(runtime.table) <= 1
    return sent


@pytest.mark.parametrize("path", APIS)
async def test_a_stream_may_begin_with_a_comment(path: str) -> None:
    async def answer(alive: asyncio.Event) -> Response:
        await alive.wait()
        return StreamingResponse(iter([b"data: {}\n\n"]), media_type="text/event-stream")

    start, *bodies = await early(path, answer, stream=True)
    assert start["status"] == 200
    names = dict(start["headers"])
    assert names[b"content-type"].startswith(b"text/event-stream")
    assert names[b"x-agentrt-program"]
    whole = b"".join(message["body"] for message in bodies)
    assert whole.startswith(sign_of(path))
    assert whole.endswith(b"data: {}\n\n")


@pytest.mark.parametrize("path", APIS)
async def test_a_refusal_after_a_comment_is_an_event_of_the_stream(path: str) -> None:
    async def answer(alive: asyncio.Event) -> Response:
        await alive.wait()
        error = {"message": "too odd", "type": "invalid_request_error", "code": 400}
        return JSONResponse({"error": error}, 400)

    start, *bodies = await early(path, answer, stream=True)
    assert start["status"] == 200
    whole = b"".join(message["body"] for message in bodies)
    last = whole.rstrip().splitlines()[-1]
    assert last.startswith(b"data: ")
    assert b"too odd" in last
    assert (b"event: error" in whole) == (path in (MESSAGES, RESPONSES))
    assert not bodies[-1].get("more_body", False)


async def test_a_call_that_is_not_streamed_keeps_its_status() -> None:
    async def answer(alive: asyncio.Event) -> Response:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5 * SOON_S):
                await alive.wait()
        return JSONResponse({"error": {"message": "too odd"}}, 400)

    start, *_ = await early(CHAT, answer)
    assert start["status"] == 400


# -- answers in one piece ------------------------------------------------------------------


@pytest.mark.parametrize("path", APIS)
async def test_an_answer_in_one_piece_may_begin_before_it_is_known(path: str) -> None:
    """With newlines, which JSON may have before it."""
    async with open_server(kind=Waiting, keep_alive_s=SOON_S, early_s=SOON_S) as local:
        async with local.client.stream("POST", path, json=ask(path, "hi")) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-agentrt-program"]
            parts, came = answer.aiter_raw(), b""
            while came.count(b"\n") < 3:
                came += await anext(parts)
            local.engine.go.set()
            came += b"".join([part async for part in parts])
        assert came.startswith(b"\n\n\n")
        assert came.lstrip(b"\n").startswith(b"{")
        plain = (await local.client.post(path, json=ask(path, "hi"))).json()
        assert json.loads(came).keys() == plain.keys()


@pytest.mark.parametrize("stream", ["true", 1, 1.0])
@pytest.mark.parametrize("path", APIS)
async def test_a_stream_is_one_whatever_its_client_writes_for_true(path: str, stream: Any) -> None:
    """vLLM streams, so the answer must not begin early as JSON."""
    async with open_server(kind=Waiting, keep_alive_s=SOON_S, early_s=1e-9) as local:
        body = {**ask(path, "hi"), "stream": stream}
        async with local.client.stream("POST", path, json=body) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            await until_alive(answer, path)
            local.engine.go.set()


async def test_official_clients_read_answers_that_begin_early() -> None:
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    async with (
        open_server(kind=Waiting, keep_alive_s=SOON_S, early_s=SOON_S) as local,
        AsyncOpenAI(base_url=f"{local.url}/v1", api_key="none") as openai,
        AsyncAnthropic(base_url=local.url, api_key="none") as anthropic,
    ):
        user: Any = [{"role": "user", "content": "hi"}]
        calls: list[asyncio.Task[Any]] = [
            asyncio.create_task(openai.chat.completions.create(model="scripted", messages=user)),
            asyncio.create_task(openai.responses.create(model="scripted", input="hi")),
            asyncio.create_task(
                anthropic.messages.create(model="scripted", messages=user, max_tokens=32)
            ),
        ]
        await local.until(lambda: len(local.engine.open) == 3)
        async with local.client.stream("POST", CHAT, json=ask(CHAT, "hi")) as answer:
            parts = answer.aiter_raw()
            await anext(parts)  # by then, the others have begun
            local.engine.go.set()
            async for _ in parts:
                pass
        chat, response, message = await asyncio.gather(*calls)
        assert chat.choices[0].message.content == SAYS
        assert response.output_text == SAYS
        assert message.content[0].text == SAYS


@pytest.mark.parametrize("path", APIS)
async def test_an_error_after_an_early_beginning_is_no_answer(path: str) -> None:
    """The connection breaks, and the client that comes again gets the error with its status."""
    async with open_server(kind=Waiting, keep_alive_s=SOON_S, early_s=SOON_S) as local:
        session = {"x-session-id": "mine"}
        request = local.client.build_request("POST", path, json=ask(path, "hi"), headers=session)
        answer = await local.client.send(request, stream=True)
        assert answer.status_code == 200
        parts = answer.aiter_raw()
        assert await anext(parts) == b"\n"
        assert (await local.client.delete("/v1/client-runs/mine")).is_success

        async def read() -> list[bytes]:
            return [part async for part in parts]

        with pytest.raises(httpx.RemoteProtocolError):
            await read()
        await local.until(lambda: not local.engine.open)
        assert local.server.tenants.calls("default") == 0


# -- a client that comes again -------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", APIS)
async def test_a_client_that_retries_never_has_two_calls(path: str, stream: bool) -> None:
    """Three tries of one request, two of which were cut while they waited."""
    async with open_server(kind=Waiting, keep_alive_s=SOON_S) as local:
        body = {**ask(path, "try me"), "stream": stream}
        for _ in range(2):
            task = asyncio.create_task(local.client.post(path, json=body))
            await local.until(lambda: local.engine.open)
            task.cancel()
            await asyncio.wait([task])
            await local.until(lambda: not local.engine.open)
            await local.until(lambda: not local.programs())
        local.engine.go.set()
        answer = await local.client.post(path, json=body)
        assert answer.status_code == 200
        assert local.engine.most == 1
        assert not any(row.calls for row in local.runtime.table)


@pytest.mark.parametrize("early_s", [0.0, SOON_S])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", APIS)
async def test_a_call_that_is_cut_while_it_waits_for_admission_never_begins(
    path: str, stream: bool, early_s: float
) -> None:
    async with open_server(
        kind=Waiting, slots=1, is_shared=True, keep_alive_s=SOON_S, early_s=early_s
    ) as local:
        calls = local.server.tenants.calls
        first = asyncio.create_task(local.client.post(path, json=ask(path, "first")))
        await local.until(lambda: local.engine.open)
        second = asyncio.create_task(
            local.client.post(path, json={**ask(path, "second"), "stream": stream})
        )
        await local.until(lambda: calls("default") == 2)
        await asyncio.sleep(0)
        assert len(local.engine.open) == 1
        second.cancel()
        await local.until(lambda: calls("default") == 1)
        local.engine.go.set()
        assert (await first).status_code == 200
        await local.until(lambda: calls("default") == 0)
        assert len(local.engine.calls) == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", APIS)
async def test_an_idempotency_key_ends_the_previous_try(path: str, stream: bool) -> None:
    """The server cannot see that the first connection is dead: its client has not closed it."""
    async with open_server(kind=Waiting) as local:
        body, key = {**ask(path, "try me"), "stream": stream}, {"idempotency-key": "k1"}
        first = asyncio.create_task(local.client.post(path, json=body, headers=key))
        await local.until(lambda: local.engine.open)
        [begun] = local.engine.open
        second = asyncio.create_task(local.client.post(path, json=body, headers=key))
        await local.until(lambda: local.engine.open not in ([begun], []))
        assert len(local.engine.open) == local.engine.most == 1
        other = asyncio.create_task(local.client.post(path, json=body))
        await local.until(lambda: len(local.engine.open) == 2)
        local.engine.go.set()
        assert (await second).status_code == (await other).status_code == 200
        await asyncio.wait([first])
        gone = first.exception() or first.result().text
        assert "idempotency" in str(gone).lower()
        assert local.server.tenants.calls("default") == 0


class AbortingSlowly(Waiting):
    """An executor that reports the abort of a call when it is allowed to."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.aborting, self.may_abort = asyncio.Event(), asyncio.Event()

    async def aborted(self, call_id: str) -> CallReport:
        self.aborting.set()
        await self.may_abort.wait()
        return CallReport()


async def test_a_try_that_is_cancelled_twice_is_forgotten() -> None:
    """Its client has disconnected and tries again before the first try's call has ended."""
    async with open_server(kind=AbortingSlowly) as local:
        body, key = ask(CHAT, "try me"), {"idempotency-key": "k1"}
        first = asyncio.create_task(local.client.post(CHAT, json=body, headers=key))
        await local.until(lambda: local.engine.open)
        [run] = local.runtime.runs.values()
        caller = caller_of(run)
        first.cancel()
        await local.engine.aborting.wait()
        second = asyncio.create_task(local.client.post(CHAT, json=body, headers=key))
        await local.until(lambda: getattr(caller(), "_off", None) is not None)
        local.engine.may_abort.set()
        local.engine.go.set()
        assert (await second).status_code == 200
        await local.until(lambda: gc.collect() >= 0 and caller() is None)


async def test_a_key_of_another_tenant_ends_nothing() -> None:
    async with open_server(kind=Waiting) as local:
        said = [{"idempotency-key": "k1", "x-agentrt-tenant": name} for name in ("a", "b")]
        tasks = [
            asyncio.create_task(local.client.post(CHAT, json=ask(CHAT, "hi"), headers=headers))
            for headers in said
        ]
        await local.until(lambda: len(local.engine.open) == 2)
        local.engine.go.set()
        assert [(await task).status_code for task in tasks] == [200, 200]


def retried(count: int, **more: str) -> dict[str, str]:
    """The headers of a try, as the SDKs of OpenAI and Anthropic send them."""
    return {"x-stainless-retry-count": str(count), "user-agent": "OpenAI/Python", **more}


async def test_official_clients_count_their_tries() -> None:
    """And send nothing else by which a server knows that a request comes again."""
    from anthropic import AsyncAnthropic, InternalServerError
    from openai import AsyncOpenAI
    from openai import InternalServerError as OpenAIError

    heads: list[str] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode().lower())
        answer = "HTTP/1.1 503 No\r\nretry-after-ms: 1\r\ncontent-length: 2\r\nconnection: close"
        writer.write(f"{answer}\r\n\r\n{{}}".encode())
        await writer.drain()
        writer.close()

    user: Any = [{"role": "user", "content": "hi"}]
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        url = f"http://{host}:{port}"
        async with (
            AsyncOpenAI(base_url=url, api_key="none", max_retries=2) as openai,
            AsyncAnthropic(base_url=url, api_key="none", max_retries=2) as anthropic,
        ):
            with pytest.raises(OpenAIError):
                await openai.chat.completions.create(model="scripted", messages=user)
            with pytest.raises(InternalServerError):
                await anthropic.messages.create(model="scripted", messages=user, max_tokens=32)
    counts = [head.partition(f"{RETRY.decode()}: ")[2][:1] for head in heads]
    assert counts == ["0", "1", "2"] * 2
    assert not any("idempotency" in head for head in heads)


CODEX = {"user-agent": "codex_exec/0.169.0 (Debian 12.0.0; x86_64)", "session-id": "s1"}
OPENCODE = {
    "user-agent": "opencode/1.18.33 ai-sdk/provider-utils",
    "x-session-affinity": "s",
}
"""What these agents send with each try: they do not count their retries."""


def another(engine: Waiting, before: set[str]) -> Callable[[], bool]:
    return lambda: not before.issuperset(engine.open)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "tries_of"),
    [
        *((path, [retried(count) for count in range(3)]) for path in APIS),
        (RESPONSES, [CODEX] * 3),
        (CHAT, [OPENCODE] * 3),
    ],
)
async def test_a_retry_ends_the_previous_try(
    path: str, tries_of: list[dict[str, str]], stream: bool
) -> None:
    """The server cannot see that the first connection is dead: a proxy keeps it open."""
    async with open_server(kind=Waiting) as local:
        body = {**ask(path, "try me"), "stream": stream}
        tries: list[asyncio.Task[httpx.Response]] = []
        for headers in tries_of:
            tries.append(asyncio.create_task(local.client.post(path, json=body, headers=headers)))
            await local.until(another(local.engine, {*local.engine.open}))
            assert len(local.engine.open) == 1
        local.engine.go.set()
        assert (await tries[-1]).status_code == 200
        assert local.engine.most == 1
        for cut in tries[:-1]:
            await asyncio.wait([cut])
            assert "retry" in str(cut.exception() or cut.result().text)
        assert local.server.tenants.calls("default") == 0


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (retried(0), retried(1, **{"x-session-id": "other"}), "hi"),
        (retried(0), retried(1, **{"user-agent": "Anthropic/JS"}), "hi"),
        (retried(0), retried(2), "hi"),
        (retried(0), retried(0), "hi"),
        (retried(0), retried(1), "something else"),
        ({}, retried(1), "hi"),
        (retried(0), {}, "hi"),
        (retried(0), retried(1, **{"x-agentrt-tenant": "other"}), "hi"),
        (CODEX, CODEX, "something else"),
        (CODEX, {**CODEX, "session-id": "s2"}, "hi"),
        ({**CODEX, "user-agent": "python-httpx"}, {**CODEX, "user-agent": "python-httpx"}, "hi"),
        ({"user-agent": "opencode/1"}, {"user-agent": "opencode/1"}, "hi"),
    ],
)
async def test_requests_that_are_no_retries_end_nothing(
    first: dict[str, str], second: dict[str, str], text: str
) -> None:
    async with open_server(kind=Waiting) as local:
        tasks = [
            asyncio.create_task(local.client.post(CHAT, json=ask(CHAT, said), headers=headers))
            for said, headers in (("hi", first), (text, second))
        ]
        await local.until(lambda: len(local.engine.open) == 2)
        local.engine.go.set()
        assert [(await task).status_code for task in tasks] == [200, 200]


async def test_a_try_that_was_cut_beside_another_request_may_be_made_again() -> None:
    async with open_server(kind=Waiting) as local:

        def send(text: str, count: int) -> asyncio.Task[httpx.Response]:
            body = ask(CHAT, text)
            return asyncio.create_task(local.client.post(CHAT, json=body, headers=retried(count)))

        first = send("first", 0)
        await local.until(lambda: len(local.engine.open) == 1)
        second = send("second", 0)
        await local.until(lambda: len(local.engine.open) == 2)
        second.cancel()
        await local.until(lambda: len(local.engine.open) == 1)
        again = send("second", 1)
        await local.until(lambda: len(local.engine.open) == 2)
        local.engine.go.set()
        assert (await first).status_code == (await again).status_code == 200


async def test_an_equal_parallel_request_is_not_taken_for_the_previous_try() -> None:
    """1. Two equal requests at once: a retry may belong to either. 2. One of them is cut, so that
    the server sees it: the next retry is its own.
    """
    async with open_server(kind=Waiting) as local:

        def send(count: int) -> asyncio.Task[httpx.Response]:
            body = ask(CHAT, "hi")
            return asyncio.create_task(local.client.post(CHAT, json=body, headers=retried(count)))

        both = [send(0), send(0)]
        await local.until(lambda: len(local.engine.open) == 2)
        third = send(1)
        await local.until(lambda: len(local.engine.open) == 3)
        both[0].cancel()
        await local.until(lambda: len(local.engine.open) == 2)
        fourth = send(1)
        await local.until(lambda: len(local.engine.open) == 3)
        local.engine.go.set()
        answers = await asyncio.gather(both[1], third, fourth)
        assert [answer.status_code for answer in answers] == [200] * 3
