"""Two real engines: the same texts wherever a call runs, and when one engine is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, program
from agentrt.executors.holdings import ShowsHoldings
from agentrt.executors.replicas import Backoff, Replica, ReplicaSet, ReplicaState
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.executors.vllm.processes import descendants
from agentrt.options import LLMOptions
from agentrt.request import Call, CallSpec
from agentrt.router import make_router

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

# float32, because bfloat16 varies with the batch that a call is in.
FLAGS = ("--dtype", "float32", "--max-model-len", "1024")
OPTIONS = EngineOptions(max_num_seqs=4, flags=FLAGS, kv_events=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas() -> AsyncIterator[ReplicaSet]:
    yield ReplicaSet(
        lambda index: VLLMEngine(OPTIONS),
        2,
        make_router("cost"),
        backoff=Backoff(first_s=0.1),
        patience_s=300,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def runtime(replicas: ReplicaSet) -> AsyncIterator[Runtime]:
    async with Runtime(replicas) as runtime:
        yield runtime


@program
async def story(ctx: Context, number: int) -> list[str]:
    """A call, a streamed one over its text, and one more; odd ones sample."""
    options = LLMOptions(max_tokens=40, ignore_eos=True)
    if number % 2:
        options |= LLMOptions(temperature=0.8, seed=number)
    chat = [{"role": "user", "content": f"Tell a story about {number} cats."}]
    first = await ctx.llm(chat, **options)
    chat += [first.message, {"role": "user", "content": "What came next?"}]
    pieces = [piece async for piece in ctx.llm(chat, stream=True, **options)]
    chat += [{"role": "assistant", "content": "".join(pieces)}]
    chat += [{"role": "user", "content": "And then?"}]
    last = await ctx.llm(chat, **options)
    return [first.text, "".join(pieces), last.text]


async def tell(runtime: Runtime) -> list[list[str]]:
    runs = [runtime.start(story, number) for number in range(8)]
    return [await run.wait() for run in runs]


async def busy(replicas: ReplicaSet) -> bool:
    """Whether both engines run calls right now."""
    snapshots = [await replica.executor.snapshot() for replica in replicas.replicas]
    return all(snapshot.get("running") for snapshot in snapshots)


def ready(replica: Replica) -> bool:
    return replica.state is ReplicaState.READY


async def knows_what_they_hold(replicas: ReplicaSet) -> None:
    """The router's index is what each engine holds when it is asked."""
    dispatcher = replicas.routing.dispatcher
    for replica in replicas.replicas:
        assert isinstance(replica.executor, ShowsHoldings)
        found = await replica.executor.held()
        assert found is not None
        note, size = found
        assert size == 32
        assert note.stored
        assert dispatcher.holdings.blocks(replica.view.index) == set(note.stored)


async def test_the_router_knows_what_each_engine_holds(
    runtime: Runtime, replicas: ReplicaSet
) -> None:
    """1. After many calls, streamed ones among them, its index is what the engines hold.
    2. What it expects of a prompt is what the engine finds in its cache.
    """
    await tell(runtime)
    await knows_what_they_hold(replicas)
    chat = ({"role": "user", "content": "Tell a story about 3 cats and a very old dog. " * 8},)
    engine, dispatcher = replicas.replicas[0].executor, replicas.routing.dispatcher
    assert isinstance(engine, ShowsHoldings)
    ids = engine.prompt_ids(CallSpec(messages=chat))
    cached = -1
    for number in range(2):
        expected = dispatcher.holdings.match(engine.block_hashes(ids), 32, len(ids) - 1)
        call = Call(f"s/{number}", "s", "t", CallSpec(messages=chat, max_tokens=4))
        reply = [chunk.reply async for chunk in replicas.generate(call, stream=False)][-1]
        assert reply is not None
        assert reply.report.prompt_tokens == len(ids)
        cached = reply.report.cached_tokens
        assert cached in expected
    assert max(expected) >= 32
    assert cached == max(expected)
    await replicas.end_program("s")


async def test_calls_of_a_killed_engine_run_again_with_the_same_texts(
    runtime: Runtime, replicas: ReplicaSet
) -> None:
    """1. Both engines work. 2. One is killed: all programs end with the texts of the first run,
    and streams repeat nothing. 3. It comes back, and leaves nothing behind."""
    expected = await tell(runtime)
    served = [(await r.executor.snapshot())["steps"] for r in replicas.replicas]
    assert min(served) > 0
    telling = asyncio.create_task(tell(runtime))
    async with asyncio.timeout(120):
        while not await busy(replicas):
            assert not telling.done()
    os.kill(descendants()[0], signal.SIGKILL)
    assert await telling == expected
    assert sorted(replica.deaths for replica in replicas.replicas) == [0, 1]
    async with asyncio.timeout(300):
        while not all(map(ready, replicas.replicas)):
            await asyncio.sleep(0.1)  # a start takes many seconds
    assert await tell(runtime) == expected
    await knows_what_they_hold(replicas)
    snapshot = await replicas.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["programs"]) == ([], [], [])
    assert [one["in_flight_tokens"] for one in snapshot["replicas"]] == [0, 0]
