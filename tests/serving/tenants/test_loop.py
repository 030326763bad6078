"""A tenant that takes the event loop waits for others to have some, and never when it is alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from agentrt.executors.frontend import ON_BUSY
from agentrt.serving.middleware import Middleware
from agentrt.serving.tenants import loop as loop_
from agentrt.serving.tenants.loop import BUSY, FREE, LONG, LoopShares, Stepped, pause

PIECES = 40


class Server:
    """One whose requests take what they are told to: time goes on by them, and by their waiting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.shares = LoopShares(lambda: self.now, self._sleep)
        self.used = {"a": 0.0, "b": 0.0}
        self.order: list[str] = []
        monkeypatch.setattr(loop_, "Stepped", self._stepped)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _stepped(self, awaited: Any, told: Callable[[float], None]) -> Stepped:
        return Stepped(awaited, told, lambda: sum(self.used.values()))

    async def ask(self, tenant: str, took_s: float, size: int = 0) -> None:
        async def request() -> None:
            self.now += took_s
            self.used[tenant] += took_s
            self.order.append(tenant)

        await self.shares.run(tenant, request, size)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


async def test_a_tenant_alone_never_waits(server: Server) -> None:
    for _ in range(100):
        await server.ask("a", 0.05)
    assert server.now == pytest.approx(5)


async def test_what_a_tenant_used_alone_does_not_count(server: Server) -> None:
    await server.ask("a", 1)
    await server.ask("b", 0.001)
    await server.ask("a", 0.01)
    assert server.now == pytest.approx(1.011)


async def test_who_uses_more_than_another_waits_while_the_loop_is_busy(server: Server) -> None:
    """The other may use the loop as it likes, and both together little of it."""
    began = server.now
    for _ in range(400):
        await server.ask("a", 0.01)
        before = server.now
        await server.ask("b", 0.0001)
        assert server.now == pytest.approx(before + 0.0001)
    share = server.used["a"] / (server.now - began)
    assert BUSY - 0.05 < share < BUSY + 0.05


async def test_two_that_use_much_share_the_loop_whole(server: Server) -> None:
    for _ in range(400):
        await server.ask("a", 0.01)
        await server.ask("b", 0.01)
    assert sum(server.used.values()) / server.now > 0.9
    assert server.used["a"] == pytest.approx(server.used["b"])


async def test_who_has_not_asked_for_a_while_is_not_waited_for(server: Server) -> None:
    await server.ask("b", 0.01)
    server.now += 1
    began = server.now
    for _ in range(100):
        await server.ask("a", 0.01)
    assert server.now == pytest.approx(began + 1)


async def test_large_bodies_wait_before_it_is_known_what_they_take(server: Server) -> None:
    """Eight of 4 MB that come at once are not parsed at once."""
    await server.ask("b", 0.001)
    asking = [asyncio.create_task(server.ask("a", 0.02, 4_000_000)) for _ in range(8)]
    await asyncio.wait(asking)
    assert server.now > 8 * 0.02 / (BUSY + FREE) - 0.1


async def test_a_large_body_is_read_in_its_tenants_turn(server: Server) -> None:
    """Each piece takes as long as the whole request of the other."""
    free = SimpleNamespace(
        draining=False,
        keys=None,
        tenants=SimpleNamespace(arrive=lambda tenant: None),
        bounds=SimpleNamespace(body_bytes=PIECES * LONG),
    )
    welcoming: Any = SimpleNamespace(refusal=lambda headers, is_socket: None)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert len((await receive())["body"]) == PIECES

    middleware = Middleware(app, cast(Any, free), welcoming, {})
    middleware._shares = server.shares
    left = PIECES

    async def receive() -> Message:
        nonlocal left
        left -= 1
        server.now += 0.01
        server.used["a"] += 0.01
        return {"type": "http.request", "body": b"1", "more_body": left > 0}

    async def send(message: Message) -> None: ...

    await server.ask("b", 0.001)
    headers = [(b"transfer-encoding", b"chunked"), (b"x-agentrt-tenant", b"a")]
    scope = {"type": "http", "method": "POST", "path": "/any", "headers": headers}
    await middleware(scope, receive, send)
    assert server.now > PIECES * 0.01 / (BUSY + FREE) - 0.1


async def test_what_holds_the_interpreter_beside_the_loop_is_used_of_it(server: Server) -> None:
    async def rendered() -> None:
        server.now += 1.0
        ON_BUSY.get()(1.0)

    await server.ask("b", 0.001)
    await server.shares.run("a", rendered, LONG)
    await server.ask("b", 0.001)
    before = server.now
    await server.ask("a", 0.001)
    assert server.now > before + 0.2


async def test_requests_of_a_tenant_wait_in_their_order_and_one_may_give_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await go.wait()
        server.now += seconds

    monkeypatch.setattr(server.shares, "_sleep", sleep)
    for tenant, took_s in (("b", 0.001), ("a", 0.5), ("b", 0.001)):
        await server.ask(tenant, took_s)
    first, second, third = (asyncio.create_task(server.ask("a", 0.01)) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await server.ask("b", 0.001)
    assert server.order == ["b", "a", "b", "b"]
    go.set()
    await asyncio.wait([second, third])
    assert server.order == ["b", "a", "b", "b", "a", "a"]


async def test_tenants_are_forgotten(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_, "_MOST_NAMES", 2)
    monkeypatch.setattr(server, "used", dict.fromkeys("abcd", 0.0))
    for name in "abcad":
        await server.ask(name, 0.001)
    assert list(server.shares._uses) == ["a", "d"]


async def test_a_request_that_fails_or_is_cancelled_does_so_as_it_would(server: Server) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await server.shares.run("a", fail, 0)
    hanging = asyncio.create_task(server.shares.run("a", asyncio.Event().wait, 0))  # type: ignore[arg-type]  # hangs
    await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.wait([hanging])
    assert hanging.cancelled()
    await server.ask("a", 0.01)


async def test_a_large_request_lets_others_go_on_between_its_pieces() -> None:
    """Its tenant's next one begins when all of its work is done, and not at its first pause."""
    shares, done = LoopShares(), list[str]()

    async def three(name: str) -> None:
        for _ in range(3):
            done.append(name)
            await pause()

    async def one(name: str) -> None:
        done.append(name)

    await asyncio.gather(
        shares.run("a", lambda: three("a"), LONG),
        shares.run("a", lambda: one("A"), LONG),
        shares.run("b", lambda: three("b"), LONG - 1),
    )
    assert "".join(done) == "abbbaaA"


async def test_requests_of_a_tenant_alone_go_in_step() -> None:
    shares, done = LoopShares(), list[str]()

    async def two(name: str) -> None:
        for _ in range(2):
            done.append(name)
            await pause()

    await asyncio.gather(*(shares.run("a", partial(two, name)) for name in "123"))
    assert "".join(done) == "123123"
