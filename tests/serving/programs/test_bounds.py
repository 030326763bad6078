"""The memory that a connection may use is limited, whatever its client does."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from agentrt.executors.base import Chunk
from agentrt.request import Call
from agentrt.serving.server import Bounds
from agentrt.serving.tenants import Limits
from tests.doubles.scripted_engine import ScriptedEngine
from tests.serving.local import MODEL, WAIT_S, Held, LocalServer, open_server

CHAT = "/v1/chat/completions"
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def body(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **more}


class Raw:
    """A connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, local: LocalServer) -> Raw:
        return cls(*await asyncio.open_connection("127.0.0.1", local.listener.port))

    async def rest(self) -> bytes:
        """All that comes until the server closes."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def connections(local: LocalServer) -> int:
    server = local.listener._server
    assert server is not None
    return len(server.server_state.connections)


async def test_a_request_that_comes_a_byte_at_a_time_is_cut_off() -> None:
    """Slow loris: each byte comes in time, and the request never does."""
    async with open_server(bounds=Bounds(request_s=0.2)) as local:
        raw, sent = await Raw.to(local), list[str]()

        async def drip() -> None:
            for letter in HEAD:
                if raw.reader.at_eof() or raw.writer.transport.is_closing():
                    return
                raw.writer.write(letter.encode())
                sent.append(letter)
                await asyncio.sleep(0.005)

        dripping = asyncio.create_task(drip())
        # A letter that comes after the answer resets the connection, and takes the answer along.
        assert (await raw.rest())[:12] in (b"HTTP/1.1 408", b"")
        assert len(sent) < len(HEAD), "it was let finish"
        dripping.cancel()
        await asyncio.wait([dripping])
        await raw.close()
        await local.until(lambda: connections(local) == 0)
        await serves(local)


async def serves(local: LocalServer) -> None:
    """Returns once a request was answered. On a busy machine one may be cut off, too."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await local.client.get("/v1/models")).status_code == 200:
                    return


async def test_connections_that_say_nothing_are_cut_off() -> None:
    async with open_server(bounds=Bounds(request_s=0.1)) as local:
        silent = [await Raw.to(local) for _ in range(50)]
        for raw in silent:
            await raw.rest()
            await raw.close()
        await local.until(lambda: connections(local) == 0)


async def test_a_body_that_does_not_come_is_cut_off() -> None:
    async with open_server(bounds=Bounds(request_s=0.1)) as local:
        raw = await Raw.to(local)
        raw.writer.write(f"{HEAD}content-length: 1000\r\n\r\n{{".encode())
        assert b" 200 " not in await raw.rest()
        await raw.close()
        await local.until(lambda: connections(local) == 0)


async def test_large_bodies_are_refused_by_their_header_and_by_their_content() -> None:
    async with open_server(bounds=Bounds(body_bytes=2000)) as local:
        said = json.dumps(body(user="x" * 3000)).encode()
        kind = {"content-type": "application/json"}

        async def parts() -> Any:
            for at in range(0, len(said), 500):
                yield said[at : at + 500]

        for content in (said, parts()):  # the second says no length
            answer = await local.client.post(CHAT, content=content, headers=kind)
            assert answer.status_code == 413, answer.text
            assert "larger than 2000 bytes" in answer.json()["error"]["message"]
        assert (await local.client.post(CHAT, json=body())).status_code == 200
        assert len(local.engine.calls) == 1


async def test_headers_without_end_are_refused() -> None:
    async with open_server(bounds=Bounds(header_bytes=4096)) as local:
        raw = await Raw.to(local)
        raw.writer.write(HEAD.encode() + b"x-much: " + b"x" * 100_000)
        assert b" 200 " not in await raw.rest()
        await raw.close()
        await local.until(lambda: connections(local) == 0)


async def test_a_request_over_the_limit_of_connections_is_refused_as_other_requests_are() -> None:
    async with open_server(bounds=Bounds(connections=2)) as local:
        raw = await Raw.to(local)
        await local.until(lambda: connections(local) == 1)
        answer = await local.client.post(CHAT, json=body())
        assert answer.status_code == 503
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("5", "close")
        assert answer.headers["x-request-id"]
        assert answer.json()["error"]["code"] == "too_many_connections"
        await raw.close()
        await local.until(lambda: connections(local) == 0)
        assert (await local.client.post(CHAT, json=body())).status_code == 200


class Chatter(Held):
    """An executor whose calls never end."""

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.open.add(call.call_id)
        made = ScriptedEngine.generate(self, call, stream=stream)
        try:
            async with contextlib.aclosing(made) as chunks:
                chunk = await anext(chunks)
                chunk.output.outputs[0].text = "many words " * 1000
                while True:
                    await asyncio.sleep(0)
                    yield chunk
        finally:
            self.open.discard(call.call_id)


async def test_a_client_that_does_not_read_is_disconnected_and_its_call_cancelled() -> None:
    async with open_server(kind=Chatter, bounds=Bounds(reader_s=0.2)) as local:
        engine = local.engine
        raw = await Raw.to(local)
        said = json.dumps(body(stream=True)).encode()
        raw.writer.write(f"{HEAD}content-length: {len(said)}\r\n\r\n".encode() + said)
        reading: Any = raw.writer.transport
        reading.pause_reading()
        await local.until(lambda: engine.open)
        await local.until(lambda: not engine.open)
        await local.until(lambda: connections(local) == 0)
        raw.writer.transport.abort()


async def test_a_run_that_is_ended_cancels_the_call_of_a_client_that_does_not_read() -> None:
    async with open_server(kind=Chatter) as local:
        run = (await local.client.post("/v1/client-runs", json={})).json()["id"]
        raw = await Raw.to(local)
        said = json.dumps(body(stream=True)).encode()
        head = f"{HEAD}x-agentrt-run: {run}\r\nconnection: close\r\n"
        raw.writer.write(f"{head}content-length: {len(said)}\r\n\r\n".encode() + said)
        reading: Any = raw.writer.transport
        reading.pause_reading()
        calls = local.runtime._services.client_calls
        await local.until(lambda: calls and all(call.task is None for call in calls))
        assert (await local.client.delete(f"/v1/client-runs/{run}")).json()["deleted"] is True
        reading.resume_reading()
        assert b"was ended" in await raw.rest()
        await local.until(lambda: not local.engine.open)
        await raw.close()


async def test_a_tenant_with_too_many_calls_gets_retry_after() -> None:
    async with open_server(kind=Held, limits=Limits(calls=3)) as local:
        asking = [asyncio.create_task(local.chat("x")) for _ in range(3)]
        await local.until(lambda: len(local.engine.open) == 3)
        refused = await local.client.post(CHAT, json=body())
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        local.engine.go.set()
        await asyncio.gather(*asking)
        assert (await local.client.post(CHAT, json=body())).status_code == 200


async def test_request_ids_come_back() -> None:
    async with open_server() as local:
        said = {"x-request-id": "mine-7"}
        answer = await local.client.post(CHAT, json=body(), headers=said)
        assert answer.headers["x-request-id"] == "mine-7"
        assert answer.json()["id"] == "chatcmpl-mine-7"
        for bad in ("x" * 200, "two words"):
            answer = await local.client.get("/v1/models", headers={"x-request-id": bad})
            assert len(answer.headers["x-request-id"]) == 32
        missing = await local.client.get("/v1/nothing")
        assert len(missing.headers["x-request-id"]) == 32


async def test_anthropics_client_finds_the_id_of_its_request() -> None:
    from anthropic import AsyncAnthropic, BadRequestError

    async with (
        open_server() as local,
        AsyncAnthropic(base_url=local.url, api_key="none") as client,
    ):
        said = {"x-request-id": "mine-7"}
        hello: Any = [{"role": "user", "content": "hi"}]
        request = {"model": MODEL, "messages": hello, "extra_headers": said}
        answer = await client.messages.create(**request, max_tokens=8)
        assert answer._request_id == "mine-7"
        with pytest.raises(BadRequestError) as refused:
            await client.messages.create(**request, max_tokens=0)
        assert refused.value.request_id == "mine-7"


async def test_all_requests_of_a_tenant_count_whatever_they_ask_for() -> None:
    """Health checks need no key, and are not counted."""
    limits = Limits(http_requests_per_minute=2)
    async with open_server(limits=limits) as local:
        for path in ("/v1/models", "/v1/programs"):
            assert (await local.client.get(path)).status_code == 200
        for path in ("/v1/models", "/v1/programs", "/nothing"):
            refused = await local.client.get(path)
            assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (429, True)
            assert "http requests per minute" in refused.text
        other = await local.client.get("/v1/models", headers={"x-agentrt-tenant": "b"})
        assert other.status_code == 200
        assert (await local.client.get("/")).status_code != 429


async def test_websockets_of_vllm_are_not_served() -> None:
    async with open_server() as local:
        with pytest.raises(InvalidStatus, match="426"):
            await connect(local.url.replace("http", "ws", 1) + "/v1/realtime", proxy=None)
