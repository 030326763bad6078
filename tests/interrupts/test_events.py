"""Events that a program waits for, from a source in the test's hands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentrt import Context, Event, Runtime, program
from agentrt.errors import ConfigError, InterruptExpiredError
from agentrt.graph import NodeKind, NodeState
from agentrt.runtime.run import RunState
from agentrt.scheduler.table import ProgramState, state_of
from tests.doubles.scripted import ScriptedExecutor
from tests.interrupts.byhand import ByHand


def alarms(count: int) -> list[Event]:
    return [Event("plant/a", number) for number in range(count)]


@pytest.fixture
async def source() -> ByHand:
    return ByHand(*alarms(5))


@pytest.fixture
async def runtime(source: ByHand) -> AsyncIterator[Runtime]:
    async with Runtime(ScriptedExecutor(lambda call: "x"), events=source) as runtime:
        assert source.is_open
        yield runtime
        assert not source.live
    assert not source.is_open


async def test_one_event_is_awaited_as_a_node(source: ByHand, runtime: Runtime) -> None:
    @program
    async def waits(ctx: Context) -> Event:
        event: Event = await ctx.event("plant/+", timeout=60)
        assert not source.live
        return event

    run = runtime.start(waits)
    assert await run.wait() == Event("plant/a", 2, dropped=2)
    (node,) = run.dag.nodes()
    assert (node.kind, node.name, node.state) == (NodeKind.EVENT, "plant/+", NodeState.DONE)
    assert node.interrupt is not None
    assert node.interrupt.transport == "hand"
    assert node.interrupt.deadline is not None


async def test_iteration_loses_nothing_that_has_room(source: ByHand, runtime: Runtime) -> None:
    """Of five, three have room; each wait is a node, after the one before."""

    @program
    async def listens(ctx: Context) -> list[Event]:
        heard = []
        async for event in ctx.event("plant/#"):
            heard.append(event)
            if len(heard) == 4:
                break
            if len(heard) == 3:
                source.live[0].put(Event("plant/b", "more"))
        return heard

    run = runtime.start(listens)
    events: list[Event] = await run.wait()
    assert [(one.payload, one.dropped) for one in events] == [(2, 2), (3, 0), (4, 0), ("more", 0)]
    assert [node.parents for node in run.dag.nodes()] == [(), (0,), (1,), (2,)]


async def test_the_subscription_ends_with_its_block(source: ByHand, runtime: Runtime) -> None:
    @program
    async def listens(ctx: Context) -> int:
        async with ctx.event("plant/#") as events:
            async for _ in events:
                break
            assert len(source.live) == 1
        return len(source.live)

    assert await runtime.start(listens).wait() == 0


async def test_past_its_deadline_it_expires(source: ByHand, runtime: Runtime) -> None:
    source.first = ()

    @program
    async def waits(ctx: Context) -> str:
        try:
            await ctx.event("plant/+", timeout=0.01)
        except InterruptExpiredError as error:
            return str(error)
        return "no error"

    run = runtime.start(waits)
    assert await run.wait() == "no event arrived on 'plant/+' within 0.01 s"
    assert run.dag.node(0).state is NodeState.EXPIRED


async def test_a_program_that_waits_says_so_and_can_be_cancelled(
    source: ByHand, runtime: Runtime
) -> None:
    source.first = ()

    @program
    async def waits(ctx: Context) -> None:
        async for _ in ctx.event("plant/#"):
            pass

    run = runtime.start(waits)
    await source.asked.wait()
    assert state_of(run.row, runtime.now(), 60.0) is ProgramState.WAITING_FOR_EVENT
    run.cancel()
    assert run.task is not None
    await asyncio.wait([run.task])
    assert run.state is RunState.CANCELLED
    assert run.dag.node(0).state is NodeState.CANCELLED


async def test_a_program_that_is_cancelled_twice_still_ends(
    source: ByHand, runtime: Runtime
) -> None:
    """The second time comes while its subscription is being ended."""
    source.first = ()
    source.may_close.clear()

    @program
    async def waits(ctx: Context) -> None:
        async for _ in ctx.event("plant/#"):
            pass

    run = runtime.start(waits)
    await source.asked.wait()
    run.cancel()
    await source.closing.wait()
    run.cancel()
    source.may_close.set()
    assert run.task is not None
    await asyncio.wait([run.task])
    assert run.state is RunState.CANCELLED
    assert run.id not in runtime.runs
    assert not source.live


async def test_without_a_source_there_is_a_clear_error() -> None:
    @program
    async def waits(ctx: Context) -> None:
        await ctx.event("plant/+")

    async with Runtime(ScriptedExecutor(lambda call: "x")) as runtime:
        with pytest.raises(ConfigError, match=r"there is no source of events.*--broker"):
            await runtime.start(waits).wait()
