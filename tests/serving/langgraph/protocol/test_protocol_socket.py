"""The streaming protocol over a WebSocket: messages, and who may connect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import get_client, get_sync_client
from sse_starlette.sse import SendTimeoutError
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentrt.serving.langgraph import api_with
from agentrt.serving.langgraph.auth.hooks import load_auth
from agentrt.serving.langgraph.protocol.routes import ProtocolRoutes, ProtocolSocket
from tests.serving.langgraph.graphs import GATES, TURN_S, all_graphs
from tests.serving.langgraph.protocol.test_protocol import VALUES, start, told, until
from tests.serving.langgraph.runs.test_runs import DONE, IN
from tests.serving.langgraph.serve import Serving, serving
from tests.serving.langgraph.test_auth import HOOKS
from tests.serving.tenants.plain_keys import PlainKeys

SUBSCRIBE = '{"id": 1, "method": "subscription.subscribe", "params": {"channels": ["values"]}}'
FRIEND, STRANGER = "https://front.example", "https://evil.example"


class Socket:
    """A bare connection: its answers by their ids, and its events."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []
        self._number = 0

    async def next(self) -> Any:
        async with asyncio.timeout(TURN_S):
            return json.loads(await self.connection.recv())

    async def ask(self, method: str, **params: Any) -> Any:
        """A command's answer. Events that come before it are kept."""
        self._number += 1
        given = {"id": self._number, "method": method, "params": params}
        await self.connection.send(json.dumps(given))
        while (message := await self.next()).get("type") == "event":
            self.events.append(message)
        assert message["id"] == self._number
        return message

    async def subscribe(self, *channels: str, **more: Any) -> str:
        done = await self.ask("subscription.subscribe", channels=list(channels), **more)
        assert done["type"] == "success", done
        return str(done["result"]["subscription_id"])

    async def until(self, end: str) -> list[Any]:
        """The events until the root graph has come to this end."""
        found: list[Any] = []
        while True:
            event = self.events.pop(0) if self.events else await self.next()
            found.append(event)
            if told(event) == ("lifecycle", end):
                return found

    async def closed(self) -> tuple[int, str]:
        """The code and the reason, once the server has closed it."""
        async with asyncio.timeout(TURN_S):
            with suppress(ConnectionClosed):
                while True:
                    await self.connection.recv()
        assert self.connection.close_code is not None
        return self.connection.close_code, self.connection.close_reason or ""


@asynccontextmanager
async def opened(url: str, thread: str = "", **options: Any) -> AsyncIterator[Socket]:
    path = f"/threads/{thread or uuid4()}/stream/events"
    where = url.replace("http", "ws", 1) + path
    async with connect(where, proxy=None, **options) as connection:
        yield Socket(connection)


async def status(url: str, **options: Any) -> int:
    """Return the status of a handshake."""
    try:
        async with opened(url, **options):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


# -- the client ---------------------------------------------------------------------------


def test_the_synchronous_client_runs_a_graph(it: Serving) -> None:
    with (
        get_sync_client(url=it.url) as client,
        client.threads.stream(assistant_id="steps", transport="websocket") as thread,
    ):
        thread.run.start(input=IN)
        assert thread.output == DONE


# -- messages -----------------------------------------------------------------------------


async def test_events_equal_those_over_http_and_resume_from_a_number(
    it: Serving, http: httpx.AsyncClient
) -> None:
    thread = str(uuid4())
    await start(http, thread, "nested")
    whole = await until(http, thread, "completed", channels=VALUES)
    inside = await until(http, thread, "subcompleted", channels=VALUES, namespaces=[["sub"]])
    async with opened(it.url, thread) as socket:
        await socket.subscribe(*VALUES)
        assert await socket.until("completed") == whole
    async with opened(it.url, thread) as socket:
        await socket.subscribe(*VALUES, since=whole[1]["seq"])
        assert await socket.until("completed") == whole[2:]
    async with opened(it.url, thread) as socket:
        await socket.subscribe(*VALUES, namespaces=[["sub"]])
        assert await socket.until("subcompleted") == inside


async def test_a_subscription_says_how_many_events_were_there_already(
    it: Serving, http: httpx.AsyncClient
) -> None:
    """They come before the answer, as from LangGraph's own server. 1. A thread that is not there.
    2. A run that has ended. 3. Some of its events. 4. A run that has not ended.
    """
    thread, gate = str(uuid4()), str(uuid4())

    async def replayed(**options: Any) -> tuple[int, int]:
        async with opened(it.url, thread) as socket:
            done = await socket.ask("subscription.subscribe", channels=VALUES, **options)
            return done["result"]["replayed_events"], len(socket.events)

    assert await replayed() == (0, 0)
    await start(http, thread, "steps")
    whole = await until(http, thread, "completed", channels=VALUES)
    assert await replayed() == (len(whole), len(whole))
    assert await replayed(since=whole[1]["seq"]) == (len(whole) - 2, len(whole) - 2)
    live = await start(http, thread, "gate", {"gate": gate, "steps": []})
    await GATES.reached(gate)
    last = whole[-1]["seq"]
    events = await until(http, thread, "running", channels=["lifecycle"], since=last)
    assert len(events) == 1
    assert await replayed(since=last) == (3, 3)
    GATES.open(gate)
    await http.get(f"/threads/{thread}/runs/{live}/join")


async def test_unsubscribed_channels_send_no_events(it: Serving) -> None:
    async with opened(it.url) as socket:
        values = await socket.subscribe("values")
        await socket.subscribe("lifecycle", namespaces=[[]], depth=0)
        assert (await socket.ask("subscription.unsubscribe", subscription_id=values))[
            "result"
        ] == {}
        again = await socket.ask("subscription.unsubscribe", subscription_id=values)
        assert again["error"] == "no_such_subscription"
        await socket.ask("run.start", assistant_id="steps", input=IN)
        events = await socket.until("completed")
        assert [told(one) for one in events] == [
            ("lifecycle", "running"),
            ("lifecycle", "completed"),
        ]


async def test_a_subscription_that_breaks_off_ends_the_connection(
    it: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as when the database is away: a client that comes back gets what it has missed."""

    async def broken(*_: Any) -> AsyncIterator[Any]:
        raise OSError("the database is away")
        yield

    async with opened(it.url) as socket:
        await socket.subscribe("lifecycle")
        monkeypatch.setattr(ProtocolRoutes, "_of_thread", broken)
        await socket.connection.send(
            '{"id": 7, "method": "subscription.subscribe", "params": {"channels": ["values"]}}'
        )
        code, why = await socket.closed()
        assert (code, "since" in why) == (1011, True)


@pytest.mark.parametrize(
    ("message", "key", "code"),
    [
        ("{", None, "invalid_argument"),
        (b'{"id": 7}', 7, "invalid_argument"),
        ('{"id": "7", "method": "state.get"}', None, "invalid_argument"),
        ('{"id": 7, "method": "state.get", "params": {"keys": "\\u0000"}}', 7, "invalid_argument"),
        ('{"id": 7, "method": "subscription.subscribe"}', 7, "invalid_argument"),
        (
            '{"id": 7, "method": "subscription.subscribe", "params": {"channels": ["teapot"]}}',
            7,
            "invalid_argument",
        ),
        ('{"id": 7, "method": "subscription.unsubscribe"}', 7, "no_such_subscription"),
    ],
)
async def test_invalid_requests_get_an_answer(
    it: Serving, message: str | bytes, key: int | None, code: str
) -> None:
    async with opened(it.url) as socket:
        await socket.connection.send(message)
        answer = await socket.next()
        assert (answer["type"], answer["id"], answer["error"]) == ("error", key, code)
        assert answer["message"]
        assert (await socket.ask("run.start", assistant_id="steps"))["type"] == "success"


# -- who may connect ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with keys, and with a page that may call it."""
    folder = tmp_path_factory.mktemp("keyed")
    with serving(all_graphs(), folder / "a.db", keys=PlainKeys(), origins=[FRIEND]) as it:
        yield it


@pytest.mark.parametrize(
    "options",
    [
        {"additional_headers": {"authorization": "Bearer ann"}},
        {"additional_headers": {"x-api-key": "root"}},
        {"origin": FRIEND, "subprotocols": ["agentrt", "agentrt.bearer.ann"]},
    ],
    ids=["tenant", "operator", "page"],
)
async def test_a_key_opens_a_connection_to_its_own_threads_only(
    keyed: Serving, options: dict[str, Any]
) -> None:
    thread = str(uuid4())
    async with opened(keyed.url, thread, **options) as socket:
        assert socket.connection.subprotocol == options.get("subprotocols", [None])[0]
        await socket.subscribe(*VALUES)
        await socket.ask("run.start", assistant_id="steps", input=IN)
        await socket.until("completed")
    headers = {"x-api-key": "eve"}
    async with opened(keyed.url, thread, additional_headers=headers) as socket:
        await socket.subscribe(*VALUES)
        state = await socket.ask("state.get", namespace=[])
        assert state["message"] == f"thread '{thread}' not found"
        taken = await socket.ask("run.start", assistant_id="steps", input=IN)
        assert taken["type"] == "error"
        assert socket.events == []


async def test_connections_without_a_key_are_refused(keyed: Serving) -> None:
    assert await status(keyed.url) == 401
    assert await status(keyed.url, subprotocols=["agentrt", "agentrt.bearer."]) == 401
    async with opened(keyed.url, origin=FRIEND) as socket:  # a page cannot read a status
        assert await socket.closed() == (4401, "Unauthorized")


async def test_pages_of_strangers_are_refused_with_keys_and_without(
    it: Serving, keyed: Serving
) -> None:
    """With keys, too: a browser sends cookies along, which authentication hooks may read."""
    key = {"x-api-key": "ann"}
    assert await status(keyed.url, origin=STRANGER, additional_headers=key) == 403
    assert await status(keyed.url, origin="http://localhost:3000", additional_headers=key) == 403
    assert await status(keyed.url, origin=FRIEND, additional_headers=key) == 101
    assert await status(keyed.url, origin=keyed.url, additional_headers=key) == 101
    assert await status(it.url, origin=STRANGER) == 403
    assert await status(it.url, origin="null") == 403
    assert await status(it.url, origin="http://localhost:3000") == 101
    assert await status(it.url, origin=it.url) == 101


async def test_other_paths_and_invalid_threads_are_refused(it: Serving) -> None:
    assert await status(it.url, thread="none") == 403
    with pytest.raises(InvalidStatus):
        await connect(it.url.replace("http", "ws", 1) + "/ok", proxy=None)


async def test_authentication_hooks_are_called(tmp_path: Path) -> None:
    (tmp_path / "auth.py").write_text(HOOKS)
    project = tmp_path / "langgraph.json"
    project.write_text('{"auth": {"path": "./auth.py:auth"}}')
    own = api_with(load_auth(project))
    with serving(all_graphs(), tmp_path / "a.db", own) as it:
        thread = str(uuid4())
        page = {"origin": it.url, "subprotocols": ["agentrt", "agentrt.bearer.a"]}
        async with opened(it.url, thread, **page) as socket:
            await socket.subscribe(*VALUES)
            done = await socket.ask("run.start", assistant_id="steps", input=IN)
            assert done["type"] == "success"
            await socket.until("completed")
        for message in ({"channels": VALUES}, {}):
            method = "subscription.subscribe" if message else "state.get"
            async with opened(it.url, thread) as socket:
                given = {"id": 1, "method": method, "params": message}
                await socket.connection.send(json.dumps(given))
                assert await socket.closed() == (4401, "who are you?")
        async with get_client(url=it.url, headers={"authorization": "Bearer none"}) as client:
            stream = client.threads.stream(thread, assistant_id="steps", transport="websocket")
            async with asyncio.timeout(TURN_S), stream as listening:
                with pytest.raises(Exception, match="401"):
                    await listening.run.start(input=IN)


def bare_socket(messages: list[Message], over: asyncio.Event, told: list[Message]) -> WebSocket:
    """A connection whose client sends ``messages``, and disconnects when it is ``over``."""
    left = iter([{"type": "websocket.connect"}, *messages])

    async def receive() -> Message:
        for message in left:
            return message
        await over.wait()
        return {"type": "websocket.disconnect"}

    async def send(message: Message) -> None:
        told.append(message)
        if message["type"] == "websocket.close":
            over.set()

    scope: dict[str, Any] = {"type": "websocket", "asgi": {}, "http_version": "1.1", "scheme": "ws"}
    scope |= {"server": None, "client": None, "root_path": "", "path": "/stream/events"}
    return WebSocket({**scope, "headers": [], "subprotocols": []}, receive, send)


async def test_messages_after_the_close_are_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered, told = asyncio.Event(), list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await connection.close()
        await send({"type": "http.response.start", "status": 200})

    connection = bare_socket([{"type": "websocket.receive", "text": SUBSCRIBE}], answered, told)
    async with asyncio.timeout(TURN_S):
        await ProtocolSocket(connection, app).serve()
    assert [message["type"] for message in told] == ["websocket.accept", "websocket.close"]
    assert not caplog.records


async def test_a_client_that_reads_too_slowly_is_disconnected() -> None:
    """Otherwise the client would wait for the events of its subscription without end."""
    over, told = asyncio.Event(), list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise SendTimeoutError

    connection = bare_socket([{"type": "websocket.receive", "text": SUBSCRIBE}], over, told)
    async with asyncio.timeout(TURN_S):
        await ProtocolSocket(connection, app).serve()
    assert (told[-1]["code"], "subscribe with since" in told[-1]["reason"]) == (1011, True)
