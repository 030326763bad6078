"""A client takes calls from any thread and any loop, and leaves nothing running behind them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentrt import Runtime
from agentrt.errors import ConfigError, EngineDiedError, EngineStartError
from agentrt.executors.base import Chunk, Progress
from agentrt.integrations.langchain import RuntimeClient, shared
from agentrt.request import Call
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.langchain.stub import HeldExecutor

ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
Elsewhere = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer, or of a piece of one."""
    parts = [one.get("message") or one["delta"] for one in answer["choices"]]
    return "".join(part.get("content") or "" for part in parts)


async def same_loop(work: Coroutine[Any, Any, Any]) -> Any:
    return await work


async def other_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run on a loop of its own, in a thread."""
    return await asyncio.to_thread(asyncio.run, work)


FROM = pytest.mark.parametrize("where", [same_loop, other_loop])


@pytest.fixture
def held() -> HeldExecutor:
    return HeldExecutor()


@pytest.fixture
def owned(held: HeldExecutor) -> Iterator[RuntimeClient]:
    client = RuntimeClient(lambda: Runtime(held))
    yield client
    client.close()
    assert held.live == 0
    assert "agentrt" not in {thread.name for thread in threading.enumerate()}


async def started(held: HeldExecutor) -> None:
    assert await asyncio.to_thread(held.began.wait, 60)


# -- one that owns its runtime ---------------------------------------------------------------


def test_a_thread_waits_for_its_reply(held: HeldExecutor, owned: RuntimeClient) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(owned.call, ASK) for _ in range(3)]
        held.began.wait()
        held.let_go()
        replies = [future.result() for future in waiting]
    assert {text_of(answer) for answer in replies} == {"one two three"}
    programs = {answer["agentrt"]["program_id"] for answer in replies}
    assert programs == {"chat-1", "chat-2", "chat-3"}
    owned.close()
    assert sorted(held.ended) == ["chat-1", "chat-2", "chat-3"]


def test_a_thread_reads_a_stream(held: HeldExecutor, owned: RuntimeClient) -> None:
    owned.open()
    held.let_go()
    pieces = list(owned.stream(ASK))
    assert "".join(map(text_of, pieces)) == "one two three"
    assert ["agentrt" in piece for piece in pieces] == [False] * (len(pieces) - 1) + [True]


async def test_another_loop_waits_for_its_reply(held: HeldExecutor, owned: RuntimeClient) -> None:
    call = asyncio.create_task(owned.acall(ASK))
    await started(held)
    held.let_go()
    assert text_of(await call) == "one two three"


def test_a_closed_stream_ends_its_call(held: HeldExecutor, owned: RuntimeClient) -> None:
    stream = owned.stream(ASK)
    assert text_of(next(stream)) == "one"
    stream.close()
    assert held.live == 0
    owned.close()
    assert held.ended == ["chat-1"]


def test_ctrl_c_ends_the_call(held: HeldExecutor, owned: RuntimeClient) -> None:
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        held.began.wait()
        signal.pthread_kill(main, signal.SIGINT)

    # Whoever starts the tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    finger = threading.Thread(target=press)
    finger.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            owned.call(ASK)
    finally:
        finger.join()
        signal.signal(signal.SIGINT, before)
    assert held.live == 0
    owned.close()
    assert held.ended == ["chat-1"]


async def test_closing_tells_those_that_wait(held: HeldExecutor, owned: RuntimeClient) -> None:
    blocked = asyncio.create_task(asyncio.to_thread(owned.call, ASK))
    waiting = asyncio.create_task(owned.acall(ASK))
    while held.live < 2:
        await asyncio.sleep(0)
    await asyncio.to_thread(owned.close)
    for task in (blocked, waiting):
        with pytest.raises(EngineDiedError, match="its runtime was closed"):
            await task
    with pytest.raises(ConfigError, match="is closed"):
        owned.call(ASK)


class Lame(ScriptedExecutor):
    """Fails to start so many times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.starts = 0

    async def start(self, progress: Progress) -> None:
        self.starts += 1
        if self.starts <= self.failures:
            raise EngineStartError("no memory")
        await super().start(progress)


def test_a_start_that_failed_is_tried_again_by_the_next_call() -> None:
    lame = Lame(failures=1)
    client = RuntimeClient(lambda: Runtime(lame))
    with pytest.raises(EngineStartError, match="no memory"):
        client.call(ASK)
    assert text_of(client.call(ASK))
    client.close()
    assert lame.starts == 2


async def test_many_callers_wait_for_one_start() -> None:
    lame = Lame(failures=0)
    client = RuntimeClient(lambda: Runtime(lame))
    await asyncio.gather(*[client.acall(ASK) for _ in range(5)])
    await asyncio.to_thread(client.close)
    assert lame.starts == 1


class Sluggish(ScriptedExecutor):
    """Starts when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.starting = threading.Event()
        self.stopped = False

    async def start(self, progress: Progress) -> None:
        self.starting.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.stopped = True


async def test_closing_during_the_start_gives_it_up() -> None:
    sluggish = Sluggish()
    client = RuntimeClient(lambda: Runtime(sluggish))
    call = asyncio.create_task(client.acall(ASK))
    await asyncio.to_thread(sluggish.starting.wait)
    await asyncio.to_thread(client.close)
    with pytest.raises(EngineDiedError):
        await call
    assert sluggish.stopped


def test_closing_twice_or_unused_is_nothing() -> None:
    client = RuntimeClient(lambda: Runtime(ScriptedExecutor()))
    client.close()
    client.close()
    assert client.closed
    with pytest.raises(ConfigError, match="closed"):
        client.call(ASK)


# -- a borrowed one --------------------------------------------------------------------------


@FROM
async def test_cancelling_a_call_aborts_it(held: HeldExecutor, where: Elsewhere) -> None:
    async with Runtime(held) as runtime:
        client = RuntimeClient.borrow(runtime)

        async def give_up() -> None:
            call = asyncio.create_task(client.acall(ASK))
            await started(held)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (held.live, len(runtime.runs)) == (0, 0)

        await where(give_up())


@FROM
async def test_leaving_a_stream_aborts_it(held: HeldExecutor, where: Elsewhere) -> None:
    async with Runtime(held) as runtime:
        client = RuntimeClient.borrow(runtime)

        async def leave() -> None:
            stream = client.astream(ASK)
            assert text_of(await anext(stream)) == "one"
            await stream.aclose()
            assert (held.live, len(runtime.runs)) == (0, 0)

        await where(leave())


async def test_a_worker_thread_may_block_but_the_loop_may_not() -> None:
    async with Runtime(ScriptedExecutor(lambda call: "yes")) as runtime:
        client = RuntimeClient.borrow(runtime)
        assert text_of(await asyncio.to_thread(client.call, ASK)) == "yes"
        chunks = await asyncio.to_thread(lambda: list(client.stream(ASK)))
        assert text_of(chunks[0]) == "yes"
        for blocking in (lambda: client.call(ASK), lambda: list(client.stream(ASK))):
            with pytest.raises(ConfigError, match="use ainvoke"):
                blocking()


async def test_a_stream_of_a_thread_may_be_closed_on_the_loop(held: HeldExecutor) -> None:
    async with Runtime(held) as runtime:
        stream = RuntimeClient.borrow(runtime).stream(ASK)
        assert text_of(await asyncio.to_thread(next, stream)) == "one"
        stream.close()
        while held.live:
            await asyncio.sleep(0)


def test_a_runtime_is_borrowed_where_it_lives() -> None:
    runtime = Runtime(ScriptedExecutor())
    with pytest.raises(ConfigError, match=r"RuntimeClient\.borrow"):
        RuntimeClient.borrow(runtime)
    loop = asyncio.new_event_loop()
    with pytest.raises(ConfigError, match="is not running"):
        RuntimeClient.borrow(runtime, loop).call(ASK)
    loop.close()
    with pytest.raises(EngineDiedError, match="closed"):
        asyncio.run(RuntimeClient.borrow(runtime, loop).acall(ASK))
    with pytest.raises(EngineDiedError, match="closed"):
        asyncio.run(read(RuntimeClient.borrow(runtime, loop)))


async def read(client: RuntimeClient) -> list[Any]:
    async with asyncio.timeout(60):
        return [piece async for piece in client.astream(ASK)]


def test_a_stream_that_is_cancelled_before_it_begins_ends() -> None:
    loop = asyncio.new_event_loop()
    client = RuntimeClient.borrow(Runtime(ScriptedExecutor()), loop)

    async def cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def main() -> None:
        reading = asyncio.create_task(read(client))
        await asyncio.sleep(0)  # the loop has the work now, and does not run yet
        await asyncio.to_thread(loop.run_until_complete, cancel_all())
        with pytest.raises(EngineDiedError, match="was cancelled"):
            await reading

    asyncio.run(main())
    loop.close()


class Broken(ScriptedExecutor):
    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        yield Chunk("half")
        raise EngineDiedError("power cut")


@FROM
async def test_an_engine_that_dies_is_heard_of(where: Elsewhere) -> None:
    async with Runtime(Broken()) as runtime:
        client = RuntimeClient.borrow(runtime)

        async def read() -> list[str]:
            stream = client.astream(ASK)
            texts = [text_of(await anext(stream))]
            with pytest.raises(EngineDiedError, match="power cut"):
                await anext(stream)
            return texts

        assert await where(read()) == ["half"]


# -- those of the process --------------------------------------------------------------------


def test_a_key_has_one_client_until_it_is_closed() -> None:
    def make() -> Runtime:
        return Runtime(ScriptedExecutor())

    client = shared.shared_client("key", make)
    assert shared.shared_client("key", make) is client
    assert shared.shared_client("other", make) is not client
    assert text_of(client.call(ASK))
    shared.close_all()
    assert client.closed
    assert shared.shared_client("key", make) is not client
    shared.close_all()


SCRIPT = """
import asyncio
from agentrt import Runtime
from agentrt.integrations.langchain import shared
from tests.doubles.scripted import ScriptedExecutor

class Engine(ScriptedExecutor):
    async def close(self):
        await asyncio.to_thread(print, "stopped in a worker thread")

client = shared.shared_client("key", lambda: Runtime(Engine()))
answer = client.call({"messages": [{"role": "user", "content": "hello"}]})
print(answer["choices"][0]["finish_reason"])
"""


def test_the_engine_is_stopped_when_the_interpreter_exits() -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, env=os.environ
    )
    assert run.stdout.splitlines() == ["stop", "stopped in a worker thread"]
    assert (run.stderr, run.returncode) == ("", 0)


FORKS = """
import asyncio
import multiprocessing
from agentrt import Runtime
from agentrt.errors import ConfigError
from agentrt.integrations.langchain import RuntimeClient, shared
from tests.doubles.scripted import ScriptedExecutor

ASK = {"messages": [{"role": "user", "content": "hello"}]}
client = shared.shared_client("key", lambda: Runtime(ScriptedExecutor()))

def in_child(work):
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(30)
    print(work.__name__, child.exitcode, flush=True)
    child.kill()

def nothing():
    pass

def call():
    print(client.call(ASK)["choices"][0]["finish_reason"], flush=True)

def call_borrowed():
    try:
        borrowed.call(ASK)
    except ConfigError as error:
        print(str(error)[:20], flush=True)

def borrow():
    try:
        RuntimeClient.borrow(opened).call(ASK)
    except ConfigError as error:
        print(str(error)[:24], flush=True)

call()
in_child(nothing)
in_child(call)
call()
async def main():
    global borrowed, opened
    async with Runtime(ScriptedExecutor()) as opened:
        borrowed = RuntimeClient.borrow(opened)
        in_child(call_borrowed)
        in_child(borrow)
asyncio.run(main())
"""


def test_a_forked_process_has_an_engine_of_its_own_and_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert run.stdout.splitlines() == [
        "stop",
        "nothing 0",
        *("stop", "call 0"),
        "stop",
        *("the borrowed runtime", "call_borrowed 0"),
        *("no event loop is running", "borrow 0"),
    ], run.stderr
    assert run.returncode == 0
