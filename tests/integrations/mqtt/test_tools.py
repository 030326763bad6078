"""Tools of workers at a real broker: found, called, cancelled; every mistake has its error."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, program
from agentrt.errors import (
    ConfigError,
    InterruptExpiredError,
    ToolArgumentsError,
    ToolFailedError,
    ToolLostError,
    ToolResultError,
    ToolUnavailableError,
    UnknownToolError,
)
from agentrt.integrations.mqtt import Broker, MqttTools, Worker
from agentrt.integrations.mqtt.topics import TopicPrefix
from agentrt.interrupts import Tool, ToolRequest, tool
from agentrt.interrupts.toolbox import Toolbox
from agentrt.journal import Journal
from agentrt.journal.store import SQLiteStore
from agentrt.request import ToolSpec
from agentrt.runtime.durable import Durable
from tests.doubles.ports import reserved_port
from tests.doubles.scripted import ScriptedExecutor
from tests.integrations.mqtt.conftest import running
from tests.integrations.mqtt.mosquitto import PLAIN, Mosquitto
from tests.integrations.mqtt.side import calling, cut_off, publish_once, until


@tool(idempotent=True, timeout=30, retries=2)
def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Nobody reads this.
    """
    return a + b


async def test_a_tool_is_found_with_all_that_it_says_of_itself(broker: Broker) -> None:
    async with calling(broker) as caller, running(Worker(broker, [add])):
        found = await caller.tool("add")
        assert found.spec is not None
        assert found.spec.description == "Adds two numbers."
        assert found.spec == add.spec
        assert found.options == add.options
        assert found.transport is caller.transport


async def test_a_call_returns_what_the_function_does(broker: Broker) -> None:
    @tool
    async def echo(value: dict[str, Any]) -> dict[str, Any]:
        return value

    value = {"text": "ü", "none": None, "list": [1, 2.5, {"deep": [None]}]}
    async with calling(broker) as caller, running(Worker(broker, [add, echo])):
        assert await caller.call("add", a=2, b=3) == 5
        assert await caller.call("add", a=2) == 3
        assert await caller.call("echo", value=value) == value


async def test_a_tool_that_raises_says_what(broker: Broker) -> None:
    @tool
    def broken(what: str) -> str:
        raise LookupError(what)

    async with calling(broker) as caller, running(Worker(broker, [broken])):
        with pytest.raises(ToolFailedError, match="tool broken failed: LookupError: no") as raised:
            await caller.call("broken", what="no")
    assert (raised.value.type, raised.value.name) == ("LookupError", "broken")


async def test_an_error_with_an_attribute_type_keeps_its_text(broker: Broker) -> None:
    """Such as the errors of some HTTP clients: the attribute is not the name of the class."""

    class QuotaError(Exception):
        type = 429

    @tool
    def broken() -> str:
        raise QuotaError("slow down")

    async with calling(broker) as caller, running(Worker(broker, [broken])):
        with pytest.raises(ToolFailedError, match="failed: QuotaError: slow down") as raised:
            await caller.call("broken")
    assert raised.value.type == "QuotaError"


@pytest.mark.parametrize("name", ["task", "thread"])
async def test_a_tool_that_is_cancelled_by_its_own_code_fails(name: str, broker: Broker) -> None:
    """Nobody has cancelled its call: the caller, which sends the call again, hears of its end."""

    @tool(name="task")
    async def awaits_a_cancelled_task() -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        task.cancel()
        await task

    @tool
    def thread() -> None:
        raise asyncio.CancelledError

    worker = Worker(broker, [awaits_a_cancelled_task, thread])
    async with calling(broker, resend_s=0.1) as caller, running(worker):
        with pytest.raises(ToolFailedError, match=r"CancelledError: .*own code") as raised:
            async with asyncio.timeout(10):
                await caller.call(name)
        assert raised.value.type == "CancelledError"


class Own(BaseException):
    """An error that `except Exception` does not catch."""


@pytest.mark.parametrize("kind", [GeneratorExit, Own])
@pytest.mark.parametrize("name", ["task", "future", "thread"])
async def test_a_tool_that_raises_what_is_no_exception_fails(
    name: str, kind: type[BaseException], broker: Broker
) -> None:
    def fail() -> None:
        raise kind("enough")

    @tool(name="task")
    async def raises_in_a_task() -> None:
        fail()

    @tool
    async def future() -> None:
        await asyncio.to_thread(fail)

    @tool
    def thread() -> None:
        fail()

    worker = Worker(broker, [raises_in_a_task, future, thread])
    async with calling(broker, resend_s=0.1) as caller, running(worker):
        with pytest.raises(ToolFailedError, match=f"{kind.__name__}: enough") as raised:
            async with asyncio.timeout(10):
                await caller.call(name)
        assert raised.value.type == kind.__name__


async def test_a_worker_checks_arguments_too(broker: Broker) -> None:
    async with calling(broker) as caller, running(Worker(broker, [add])):
        with pytest.raises(ToolArgumentsError, match="a: Input should be a valid integer"):
            await caller.call("add", a="many")


async def test_arguments_that_json_cannot_carry_are_not_sent(broker: Broker) -> None:
    async with calling(broker) as caller, running(Worker(broker, [add])):
        with pytest.raises(ToolArgumentsError, match="JSON"):
            await caller.call("add", a=object())
        with pytest.raises(ToolArgumentsError, match="1,048,576"):
            await caller.call("add", a="x" * 2_000_000)


async def test_a_result_that_cannot_be_is_said_by_the_worker(broker: Broker) -> None:
    @tool
    def huge() -> str:
        return "x" * 10_000_000

    @tool
    def strange() -> object:
        return {1, 2}

    @tool
    def endless() -> float:
        return float("nan")

    async with calling(broker) as caller, running(Worker(broker, [huge, strange, endless])):
        for name, said in (
            ("huge", r"10,000,\d+ bytes.*1,048,576"),
            ("strange", "JSON cannot represent"),
            ("endless", "JSON cannot represent"),
        ):
            with pytest.raises(ToolResultError, match=said):
                await caller.call(name)


async def test_what_is_too_large_for_the_broker_is_said(tmp_path: Path) -> None:
    """And the connection does not break, so other calls go on."""

    @tool
    async def long(text: str, times: int) -> str:
        return text * times

    settings = (*PLAIN, "max_packet_size 20000")
    with Mosquitto(tmp_path, settings) as mosquitto:
        broker = mosquitto.broker()
        async with calling(broker) as caller, running(Worker(broker, [long])):
            with pytest.raises(ToolArgumentsError, match="the broker accepts at most 20,000"):
                await caller.call("long", text="x" * 20_000, times=1)
            with pytest.raises(ToolResultError, match="the broker accepts at most 20,000"):
                await caller.call("long", text="x", times=20_000)
            assert await caller.call("long", text="x", times=19_000) == "x" * 19_000


async def test_a_tool_that_nobody_offers_is_unknown(broker: Broker) -> None:
    nobody = Tool("mill", spec=ToolSpec("mill", "", {"type": "object"}))
    async with calling(broker) as caller, running(Worker(broker, [add])):
        await caller.tool("add")
        with pytest.raises(UnknownToolError, match=r"no worker offers the tool 'mill' now; .*add"):
            await caller.transport.call(ToolRequest(nobody, {}), caller.heard)


async def test_a_tool_asked_for_at_once_is_waited_for(broker: Broker) -> None:
    """1. It is asked for before anybody offers it. 2. Workers begin; one of them has it. 3. What
    nobody offers soon after the start is unknown.
    """

    @tool
    def other() -> None: ...

    asked = asyncio.Event()

    class Asked(MqttTools):
        async def more(self, tenant: str) -> bool:
            asked.set()
            return await super().more(tenant)

    toolbox = Toolbox([transport := Asked(broker, settle=60)])
    async with contextlib.AsyncExitStack() as stack:
        await toolbox.open()
        stack.push_async_callback(toolbox.close)
        finding = asyncio.create_task(toolbox.find("add"))
        await asked.wait()
        for offered in (other, add):
            await stack.enter_async_context(running(Worker(broker, [offered])))
        async with asyncio.timeout(60):
            assert (await finding).name == "add"
        transport._settled_at = 0.0
        with pytest.raises(UnknownToolError, match="unknown tool 'mill'"):
            await toolbox.find("mill")


async def test_a_cancelled_call_is_cancelled_at_the_worker(broker: Broker) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with calling(broker) as caller, running(Worker(broker, [wait])):
        call = asyncio.create_task(caller.call("wait"))
        await began.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        await ended.wait()


async def test_a_program_that_is_resumed_again_and_again_calls_its_idempotent_tool_again(
    broker: Broker, tmp_path: Path
) -> None:
    """Four processes are stopped while the tool runs, the next one lets it end. A worker that took
    a new process's call for the one that was cancelled would not answer."""
    began, go_on = asyncio.Queue[None](), asyncio.Event()

    @tool(idempotent=True)
    async def wait() -> str:
        began.put_nowait(None)
        await go_on.wait()
        return "done"

    @program
    async def waits(ctx: Context) -> str:
        result: str = await ctx.tool("wait")
        return result

    async def process(*, is_last: bool) -> str | None:
        async with (
            await Journal.open(partial(SQLiteStore, tmp_path / "journal")) as journal,
            Runtime(
                ScriptedExecutor(lambda call: "x"), tools=[MqttTools(broker)], journal=journal
            ) as runtime,
        ):
            run = runtime.start(waits, durable=Durable(id="waits-1"))
            await began.get()
            if not is_last:
                return None
            go_on.set()
            result: str = await run.wait()
            return result

    async with running(Worker(broker, [wait])), asyncio.timeout(20):
        for _ in range(4):
            assert await process(is_last=False) is None
        assert await process(is_last=True) == "done"
    assert began.empty()


async def test_a_caller_that_is_cut_off_for_a_moment_keeps_its_calls_and_hears_if_it_was_too_long(
    broker: Broker, never_silent: None
) -> None:
    """1 Its connection breaks, and the call continues. 2 The broker says that it was gone too long:
    the call is stopped, and the caller, which comes back, learns it by asking again."""
    began, go_on, ended = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def wait(which: str) -> str:
        began.set()
        try:
            await go_on.wait()
        finally:
            ended.append(which)
        return which

    worker = Worker(broker, [wait])
    async with calling(broker, resend_s=0.1) as caller, running(worker):
        call = asyncio.create_task(caller.call("wait", which="first"))
        await began.wait()
        connection = caller.transport._connection
        first = connection._client
        cut_off(connection)
        await until(lambda: connection._client not in (first, None))
        assert ended == []
        go_on.set()
        assert await call == "first"
        for event in (began, go_on):
            event.clear()
        call = asyncio.create_task(caller.call("wait", which="second"))
        await began.wait()
        await publish_once(broker, broker.prefix.common().client(caller.transport._client_id), b"")
        with pytest.raises(ToolLostError, match="tool wait was stopped because its caller"):
            await call
        assert ended == ["first", "second"]


async def test_a_call_that_expires_before_its_turn_is_never_run(broker: Broker) -> None:
    """One call runs at a time; the second one waits for its second and is gone."""
    began, go_on, ran = asyncio.Event(), asyncio.Event(), []

    @tool
    async def slow(which: str) -> str:
        ran.append(which)
        began.set()
        await go_on.wait()
        return which

    async with calling(broker) as caller, running(Worker(broker, [slow], concurrency=1)):
        first = asyncio.create_task(caller.call("slow", which="first"))
        await began.wait()
        with pytest.raises(InterruptExpiredError, match=r"slow .*deadline"):
            await caller.call("slow", which="second", timeout=0.5)
        go_on.set()
        assert await first == "first"
        assert await caller.call("slow", which="third") == "third"
    assert ran == ["first", "third"]


async def test_concurrency_is_kept_to(broker: Broker) -> None:
    lock, most, now = threading.Lock(), 0, 0
    both = threading.Barrier(2, timeout=60)

    @tool
    def counted() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        both.wait()
        with lock:
            now -= 1

    async with calling(broker) as caller, running(Worker(broker, [counted], concurrency=2)):
        await asyncio.gather(*(caller.call("counted") for _ in range(8)))
    assert most == 2


async def test_a_worker_that_leaves_finishes_and_takes_its_offer_off(broker: Broker) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        began.set()
        await go_on.wait()
        return "done"

    worker = Worker(broker, [slow])
    async with calling(broker) as caller, running(worker):
        call = asyncio.create_task(caller.call("slow"))
        await began.wait()
        worker.drain()
        fleet = caller.transport._tenants["default"]
        await until(lambda: not fleet.offering("slow"))
        go_on.set()
        assert await call == "done"
        await until(lambda: not fleet.workers)


async def test_a_tool_that_is_unavailable_fails_and_is_not_called_again_and_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stays, so the error is the tool's own, and not the refusal of a worker that
    leaves. A tool whose file a worker process cannot import fails in the same way."""
    replies = 0

    @tool
    async def drill() -> None:
        raise ToolUnavailableError("the drill is switched off")

    worker = Worker(broker, [drill])
    send = worker._replies._send

    def counted(*args: Any, **options: Any) -> None:
        nonlocal replies
        replies += 1
        send(*args, **options)

    monkeypatch.setattr(worker._replies, "_send", counted)
    async with calling(broker) as caller, running(worker):
        with pytest.raises(ToolUnavailableError, match="the drill is switched off"):
            async with asyncio.timeout(10):
                await caller.call("drill")
    assert replies == 1


async def test_calls_of_a_worker_that_comes_back_are_counted_once(broker: Broker) -> None:
    """1 The first worker has two calls, and its connection breaks. 2 It comes back, and the calls
    end. 3 Of two further calls, each worker gets one."""
    go_on = asyncio.Event()

    def numbered(number: int) -> Tool:
        async def which() -> int:
            began.append(number)
            await go_on.wait()
            return number

        return tool(which)

    began = list[int]()
    first, second = (Worker(broker, [numbered(number)]) for number in (1, 2))
    async with calling(broker) as caller, running(first):
        calls = [asyncio.create_task(caller.call("which")) for _ in range(2)]
        await until(lambda: began == [1, 1])
        workers = caller.transport._tenants["default"].workers
        before = workers[first.id]
        async with running(second):
            await until(lambda: second.id in workers)
            cut_off(first._connection)
            await until(lambda: workers.get(first.id, before) is not before)
            go_on.set()
            assert await asyncio.gather(*calls) == [1, 1]
            assert sorted(await asyncio.gather(*(caller.call("which") for _ in "ab"))) == [1, 2]


async def test_a_broker_that_is_absent_is_said_and_found_later(broker: Broker) -> None:
    absent = Broker("127.0.0.1", reserved_port())
    async with calling(absent, connect_timeout=0.1) as caller:
        await caller.transport._connection._tried.wait()
        with pytest.raises(
            ToolUnavailableError, match=f"127.0.0.1:{absent.port}: .*cannot be reached"
        ):
            await caller.transport.tools()


def test_a_worker_needs_a_name_that_can_be_in_a_topic(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="invalid worker name"):
        Worker(broker, [add], name="a/b")


def test_a_tool_that_cannot_be_announced_is_refused(broker: Broker) -> None:
    @tool(name="größe")
    def size(x: int) -> int:
        return x

    @tool
    def endless(x: float = math.inf) -> float:
        return x

    with pytest.raises(ConfigError, match="'größe' cannot be offered over MQTT, because its name"):
        Worker(broker, [size])
    with pytest.raises(ConfigError, match="'endless' cannot be offered over MQTT: JSON cannot"):
        Worker(broker, [endless])


async def test_a_tool_with_an_endless_timeout_has_none(broker: Broker) -> None:
    @tool(timeout=math.inf)
    def patient() -> str:
        return "done"

    async with calling(broker) as caller, running(Worker(broker, [patient])):
        assert (await caller.tool("patient")).options.timeout is None
        assert await caller.call("patient") == "done"
        for timeout in (math.inf, 1e12):
            assert await caller.call("patient", timeout=timeout) == "done"


async def test_each_tenant_has_workers_of_its_own_below_a_prefix_that_names_it(
    broker: Broker,
) -> None:
    """Two workers offer one tool, each to its tenant; a third tenant has none."""

    def named(who: str) -> Tool:
        def name() -> str:
            return who

        return tool(name)

    @program
    async def asks(ctx: Context) -> str:
        assert [one.name for one in await ctx.tools()] == ["name"]
        answer: str = await ctx.tool("name")
        return answer

    apart = replace(broker, prefix=TopicPrefix(f"{broker.prefix.text}/{{tenant}}"))
    tenants = ("acme", "duck")
    transport = MqttTools(apart)
    async with contextlib.AsyncExitStack() as stack:
        for tenant in tenants:
            await stack.enter_async_context(running(Worker(apart, [named(tenant)], tenant=tenant)))
        executor = ScriptedExecutor(lambda call: "x")
        runtime = await stack.enter_async_context(Runtime(executor, tools=[transport]))
        await transport.tools()
        await until(lambda: all(transport._workers(one).workers for one in tenants))
        assert [await runtime.start(asks, tenant=one).wait() for one in tenants] == list(tenants)
        with pytest.raises(AssertionError):
            await runtime.start(asks, tenant="third").wait()


async def test_a_call_that_comes_again_is_answered_again_and_not_run_again(broker: Broker) -> None:
    """1 A call is sent again while it runs, as after a lost connection. 2 It ran once; each of the
    two got the result, and the second one is dropped. 3 Another attempt with its key gets that
    result, too. 4 An attempt at what failed runs anew."""
    began, go_on, ran = asyncio.Event(), asyncio.Event(), list[str]()

    @tool
    async def slow(which: str) -> str:
        ran.append(which)
        began.set()
        await go_on.wait()
        if which == "bad" and len(ran) == 2:
            raise ValueError("not yet")
        return which

    async with calling(broker) as caller, running(Worker(broker, [slow])):
        first = asyncio.create_task(caller.call("slow", "k1", which="good"))
        await began.wait()
        (call,) = caller.transport._calls.values()
        caller.transport._send(call)
        go_on.set()
        assert await first == "good"
        assert await caller.call("slow", "k1", attempt=2, which="good") == "good"
        assert ran == ["good"]
        with pytest.raises(ToolFailedError, match="not yet"):
            await caller.call("slow", "k2", which="bad")
        with pytest.raises(ToolFailedError, match="not yet"):
            await caller.call("slow", "k2", which="bad")
        assert await caller.call("slow", "k2", attempt=2, which="bad") == "bad"
        assert ran == ["good", "bad", "bad"]
