"""Large requests leave the event loop to the others: counted in steps, and in processor time."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.types import ASGIApp, Message, Scope

pytest.importorskip("vllm")

from agentrt import Runtime
from agentrt.serving import langgraph, middleware
from agentrt.serving.bodies import LONG, MANY_OBJECTS
from agentrt.serving.frontend.dispatch import FrontendApp
from agentrt.serving.middleware import LARGE_BURST_S, LARGE_SHARE, LongRequests
from agentrt.serving.server import Server
from benchmarks.attack.attacks import ATTACKS
from tests.doubles.scripted import ScriptedExecutor
from tests.serving.local import MODEL, engine_and_fronts
from tests.serving.tenants.plain_keys import PlainKeys
from tests.serving.watchdog import opened_app, timed

# -- steps, on a clock of the test's ---------------------------------------------------------


class Clock:
    """A time that passes when requests work, and while they wait."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept = 0.0
        self.ran: list[str] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds
        await asyncio.sleep(0)

    async def request(self, name: str, steps: int, step_s: float) -> None:
        """A request of so many steps, between which it waits for something."""
        for _ in range(steps):
            self.ran.append(name)
            self.now += step_s
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def requests(clock: Clock) -> LongRequests:
    return LongRequests(clock, clock.sleep)


async def test_nothing_waits_while_no_short_request_is_under_way(
    clock: Clock, requests: LongRequests
) -> None:
    await requests.run("a", clock.request("a", 10, 0.05))
    assert clock.slept == 0.0


@pytest.mark.parametrize("step_s", [0.001, 0.01, 0.05])
async def test_large_requests_take_their_share_while_short_ones_are_under_way(
    clock: Clock, requests: LongRequests, step_s: float
) -> None:
    """They take at most the share of the whole time, the burst, and the last step."""
    requests.short = 1
    steps = 40
    await asyncio.gather(
        *(requests.run("a", clock.request("a", steps // 4, step_s)) for _ in range(4))
    )
    worked = steps * step_s
    assert worked <= LARGE_SHARE * clock.now + LARGE_BURST_S + step_s
    assert worked >= 0.75 * LARGE_SHARE * clock.now


async def test_a_large_request_that_takes_little_does_not_wait(
    clock: Clock, requests: LongRequests
) -> None:
    requests.short = 1
    await requests.run("a", clock.request("a", 4, LARGE_BURST_S / 4))
    assert clock.slept == 0.0


async def test_tenants_take_turns(clock: Clock, requests: LongRequests) -> None:
    """However many requests the others have. A request has its turn until it waits."""

    async def steps(name: str) -> None:
        for _ in range(3):
            clock.ran.append(name)
            await asyncio.sleep(0)

    names = ("a", "a", "a", "a", "b")
    await asyncio.gather(*(requests.run(name, steps(name)) for name in names))
    assert "".join(clock.ran) == "aaa" + "aaa" + "bbb" + "aaa" + "aaa"


@pytest.mark.parametrize("waits", [True, False])
async def test_a_cancelled_request_passes_its_turn_on(
    clock: Clock, requests: LongRequests, waits: bool
) -> None:
    """While it waits for its turn, and while it has it. What it does at its end is done."""
    began = asyncio.Event()
    ended: list[str] = []

    async def first() -> None:
        began.set()
        try:
            for _ in range(1000):
                await asyncio.sleep(0)
        finally:
            ended.append("first")

    async def second() -> None:
        clock.ran.append("second")
        ended.append("second")

    tasks = [asyncio.create_task(carried_out(requests, work())) for work in (first, second)]
    await began.wait()
    await asyncio.sleep(0)
    tasks[waits].cancel()
    await asyncio.wait(tasks)
    await requests.run("b", clock.request("b", 1, 0.0))
    assert tasks[waits].cancelled()
    assert ended == (["first"] if waits else ["first", "second"])
    assert clock.ran == (["b"] if waits else ["second", "b"])


async def test_a_body_that_turns_out_large_does_not_wait_for_its_own_request(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small compressed body, and many objects, are known to be large after they were read."""
    monkeypatch.setattr(middleware, "LongRequests", partial(LongRequests, clock, clock.sleep))

    async def work() -> None:
        await clock.request("a", 10, 0.05)

    @asynccontextmanager
    async def working(server: Server) -> AsyncIterator[APIRouter]:
        router = APIRouter()
        router.add_api_route("/work", work, methods=["POST"])
        yield router

    async with Runtime(ScriptedExecutor()) as runtime:
        server = Server(runtime, ())
        async with (
            opened_app(server, [working], FrontendApp(server, [])) as app,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as http,
        ):
            for body, headers in (
                (gzip.compress(b'"' + b"x" * LONG + b'"'), {"content-encoding": "gzip"}),
                (b"[" + b"[]," * MANY_OBJECTS + b"[]]", {}),
            ):
                assert len(body) < LONG
                answer = await http.post("/work", content=body, headers=headers)
                assert answer.status_code == 200
    assert (len(clock.ran), clock.slept) == (20, 0.0)


async def carried_out(requests: LongRequests, work: Awaitable[None]) -> None:
    await requests.run("a", work)


async def test_the_error_of_a_request_is_raised(requests: LongRequests) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await requests.run("a", fails())


# -- attacks, in processor time --------------------------------------------------------------

CALLS = 24
MOST = 0.5
"""The part of the loop's processor time that attackers may take while short calls are under way.
Without turns they take 0.8 and more.
"""
ON_THE_LOOP = (
    *("a long prompt", "a long prompt, truncated", "tokenize", "20,000 messages"),
    *("60,000 messages", "60,000 items", "2,000 long messages", "500,000 tokens"),
    *("lists for messages", "a state of 60,000 lists"),
)


@asynccontextmanager
async def served(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ASGIApp]:
    """A server's application. The clock of its turns is the processor time of the event loop, so
    that the machine's other work does not count.
    """
    on_processor = partial(LongRequests, time.thread_time)
    monkeypatch.setattr(middleware, "LongRequests", on_processor)
    engine, fronts = await engine_and_fronts()
    async with Runtime(engine, ask_human=None) as runtime:
        server = Server(runtime, (MODEL,), {}, f"sqlite:{folder / 'a.db'}", keys=PlainKeys())
        front = FrontendApp(server, fronts)
        async with opened_app(server, [langgraph.api], front) as app:
            yield app


async def request(app: ASGIApp, tenant: str, method: str, path: str, body: bytes) -> int:
    """The status of a request whose body comes in pieces."""
    pieces = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
    messages = iter(
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    )
    statuses: list[Any] = []

    async def receive() -> Message:
        for message in messages:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        statuses.append(message.get("status"))

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"authorization", f"Bearer {tenant}".encode()),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ],
    }
    await app(scope, receive, send)
    return int(statuses[0])


@pytest.mark.parametrize("name", ON_THE_LOOP)
async def test_an_attack_leaves_the_loop_to_short_calls(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack, used_s = ATTACKS[name], 0.0
    chat = [{"role": "user", "content": "hi"}]
    short = json.dumps({"model": MODEL, "messages": chat, "max_tokens": 4}).encode()

    def takes(seconds: float) -> None:
        nonlocal used_s
        used_s += seconds

    async with served(tmp_path, monkeypatch) as app:

        async def again_and_again(number: int) -> None:
            method, path, body = attack.request(number)
            body = body.replace(b'"stock"', f'"{MODEL}"'.encode())
            while True:
                await timed(request(app, "attacker", method, path, body), takes)
                await asyncio.sleep(0)

        async def call() -> None:
            assert await request(app, "victim", "POST", "/v1/chat/completions", short) == 200

        await call()
        attackers = [asyncio.create_task(again_and_again(n)) for n in range(attack.clients)]
        for _ in range(20):
            await asyncio.sleep(0)
        shares = []
        for _ in range(3):  # other work on this machine may disturb one of them
            used_s, began = 0.0, time.thread_time()
            for _ in range(CALLS):
                await call()
            shares.append(used_s / (time.thread_time() - began))
        for task in attackers:
            task.cancel()
        await asyncio.wait(attackers)
    assert min(shares) <= MOST
