"""The Responses API over a WebSocket, as Codex speaks it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentrt.serving.frontend import response_socket
from agentrt.serving.tenants import Limits
from tests.serving.frontend.test_response_items import PATH, prompt_of
from tests.serving.local import MODEL, SAYS, Held, LocalServer, open_server
from tests.serving.tenants.plain_keys import PlainKeys

pytestmark = pytest.mark.engine

LAST = ("response.completed", "response.incomplete", "response.failed", "error")


@asynccontextmanager
async def socket_of(server: LocalServer, **headers: str) -> AsyncIterator[ClientConnection]:
    url = server.url.replace("http", "ws", 1) + PATH
    async with connect(url, proxy=None, additional_headers=headers) as socket:
        yield socket


async def ask(socket: ClientConnection, *texts: str, **more: Any) -> list[dict[str, Any]]:
    """The events of the answer to a message with these user turns."""
    turns = [{"type": "message", "role": "user", "content": text} for text in texts]
    body = {"type": "response.create", "model": MODEL, "store": False, "input": turns, **more}
    await socket.send(json.dumps(body))
    return await events(socket)


async def events(socket: ClientConnection) -> list[dict[str, Any]]:
    read = [json.loads(await socket.recv())]
    while read[-1]["type"] not in LAST:
        read.append(json.loads(await socket.recv()))
    return read


async def test_a_session_sends_only_what_is_new() -> None:
    async with open_server() as local, socket_of(local, **{"session-id": "s-1"}) as socket:
        warm = await ask(socket, "Be brief.", generate=False)
        assert [event["type"] for event in warm] == ["response.created", "response.completed"]
        assert not local.engine.calls
        name = warm[-1]["response"]["id"]
        first = await ask(socket, "hello", previous_response_id=name)
        assert first[0]["type"] == "response.created"
        assert all(event["response"]["id"] for event in first if "response" in event)
        last = first[-1]["response"]
        assert last["status"] == "completed"
        assert last["previous_response_id"] == name
        assert last["output"][0]["content"][0]["text"] == SAYS
        assert "Be brief." in prompt_of(local)
        second = await ask(socket, "and?", previous_response_id=last["id"])
        assert second[-1]["type"] == "response.completed"
        prompt = prompt_of(local)
        assert [prompt.count(text) for text in ("Be brief.", "hello", SAYS, "and?")] == [1] * 4
        [program] = {call.identity.program_id for call in local.engine.calls}
        assert program
        assert (await local.client.get(f"{PATH}/{last['id']}")).status_code == 404  # store: false


async def test_a_chat_continues_from_a_stored_response() -> None:
    async with open_server() as local, socket_of(local) as socket:
        first = await local.post(PATH, {"model": MODEL, "input": "My name is Ada."})
        answer = await ask(socket, "Who am I?", previous_response_id=first["id"])
        assert answer[-1]["type"] == "response.completed"
        assert "Ada" in prompt_of(local)


async def test_a_chat_continues_from_a_warm_up_without_input() -> None:
    async with open_server() as local, socket_of(local) as socket:
        warm = await ask(socket, generate=False)
        first = await ask(socket, "hello", previous_response_id=warm[-1]["response"]["id"])
        last = first[-1]
        assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")
        assert last["response"]["previous_response_id"] == warm[-1]["response"]["id"]


async def test_an_error_leaves_the_connection_open() -> None:
    async with open_server() as local, socket_of(local) as socket:
        for body, status, code in (
            ("no JSON", 400, "invalid_json"),
            ('{"type": "response.steer"}', 400, "unknown_event"),
            ("[1]", 400, "unknown_event"),
            ('{"type": "response.create"}', 400, None),
            ('{"type": "response.create", "model": "none", "input": "x"}', 404, None),
            (
                '{"type": "response.create", "input": "x", "previous_response_id": "resp_none"}',
                404,
                "previous_response_not_found",
            ),
        ):
            await socket.send(body)
            [event] = await events(socket)
            assert (event["type"], event["status"]) == ("error", status), event
            assert event["error"]["message"]
            assert code is None or event["error"]["code"] == code
        answer = await ask(socket, "hello", stream_id="s")
        assert {event["stream_id"] for event in answer} == {"s"}
        assert answer[-1]["type"] == "response.completed"


async def test_a_bug_is_logged_and_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_server() as local, socket_of(local) as socket:
        monkeypatch.delattr(response_socket, "input_items")
        with pytest.raises(ConnectionClosed) as closed:
            await ask(socket, "hello")
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1011, "the server failed")
    [record] = [each for each in caplog.records if "a WebSocket at" in each.message]
    assert "input_items" in str(record.exc_info)


async def test_two_connections_share_nothing() -> None:
    async with open_server() as local, socket_of(local) as a, socket_of(local) as b:
        first = await ask(a, "hello")
        [error] = await ask(b, "and?", previous_response_id=first[-1]["response"]["id"])
        assert error["status"] == 404


@pytest.mark.parametrize("count", [1, 12])
async def test_a_client_that_leaves_aborts_its_call(count: int) -> None:
    async with open_server(kind=Held) as local:
        async with socket_of(local) as socket:
            turn = {"role": "user", "content": "hello"}
            body = {"type": "response.create", "model": MODEL, "input": [turn]}
            for _ in range(count):
                await socket.send(json.dumps(body))
            await local.engine.began.wait()
        await local.until(lambda: not local.engine.open)
        await local.until(lambda: local.server.tenants.calls("default") == 0)


@pytest.mark.parametrize(("limit", "value"), [("MOST_WAITING", 1), ("MOST_WAITING_BYTES", 1500)])
async def test_messages_beyond_those_that_may_wait_are_refused_in_their_turn(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(response_socket, limit, value)
    async with open_server(kind=Held) as local, socket_of(local) as socket:
        turn = {"role": "user", "content": "x" * 1000}
        body = json.dumps({"type": "response.create", "model": MODEL, "input": [turn]})
        await socket.send(body)
        await local.engine.began.wait()
        for _ in range(3):
            await socket.send(body)
        await (await socket.ping())  # the server has received the messages
        local.engine.go.set()
        last = [(await events(socket))[-1] for _ in range(4)]
        assert [event["type"] for event in last] == [*["response.completed"] * 2, *["error"] * 2]
        assert [event["status"] for event in last[2:]] == [429, 429]
        assert (await ask(socket, "hello"))[-1]["type"] == "response.completed"


async def test_a_client_that_sends_on_and_on_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(response_socket, "MOST_WAITING", 1)
    monkeypatch.setattr(response_socket, "MOST_DROPPED", 2)
    async with open_server(kind=Held) as local, socket_of(local) as socket:
        turn = {"role": "user", "content": "hello"}
        body = json.dumps({"type": "response.create", "model": MODEL, "input": [turn]})
        await socket.send(body)
        await local.engine.began.wait()
        for _ in range(4):
            await socket.send(body)
        await socket.wait_closed()
        assert socket.close_code == 1013
        await local.until(lambda: not local.engine.open)


async def test_a_server_that_stops_closes_connections_when_they_are_idle() -> None:
    async with (
        open_server(kind=Held) as local,
        socket_of(local) as idle,
        socket_of(local) as busy,
    ):
        turn = {"role": "user", "content": "hello"}
        body = {"type": "response.create", "model": MODEL, "input": [turn]}
        await busy.send(json.dumps(body))
        await local.engine.began.wait()
        for ends in local.server.at_drain:
            await ends()
        with pytest.raises(ConnectionClosed) as closed:
            await idle.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        local.engine.go.set()
        assert (await events(busy))[-1]["type"] == "response.completed"
        with pytest.raises(ConnectionClosed):
            await busy.recv()


async def test_each_message_needs_a_key_and_counts_for_its_tenant() -> None:
    limits = Limits(http_requests_per_minute=3)
    async with open_server(keys=PlainKeys(), limits=limits) as local:
        with pytest.raises(InvalidStatus, match="401"):
            await connect(local.url.replace("http", "ws", 1) + PATH, proxy=None)
        async with socket_of(local, authorization="Bearer a") as socket:
            for _ in range(2):
                assert (await ask(socket, "hello"))[-1]["type"] == "response.completed"
            [error] = await ask(socket, "hello")
            assert (error["status"], error["error"]["code"]) == (429, "rate_limited")
        assert {call.identity.tenant for call in local.engine.calls} == {"a"}
