"""Real engines behind one router: the same texts as with one, and while they die."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentrt import Runtime
from agentrt.engines import EngineOptions, ReplicaSet, VLLMEngine
from agentrt.executors.base import Executor, last_reply
from agentrt.executors.replicas import Backoff
from agentrt.request import Call, CallSpec, Identity
from agentrt.router import make_router
from benchmarks.chaos.command import Chaos, ChaosConfig
from benchmarks.chaos.programs import ChaosPrograms
from tests.doubles.tinymodel import tiny_model
from tests.engine.lent import Lent, knows_what_they_hold

pytest.importorskip("vllm")
pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PROGRAMS = ChaosPrograms(24, 12)
LEFT_OUT = Backoff(first_s=0.0, tries=1)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> EngineOptions:
    model = tiny_model(tmp_path_factory.mktemp("model"))
    # float32, because bfloat16 varies with the batch that a call is in.
    small = ("--max-model-len", "1024", "--kv-cache-memory-bytes", str(64 << 20))
    return EngineOptions(
        str(model), 8, flags=("--dtype", "float32", *small), replicas=4, kv_events=True
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(options: EngineOptions) -> AsyncIterator[list[VLLMEngine]]:
    """Four, for all tests: a start takes many seconds."""
    four = [VLLMEngine(options) for _ in range(4)]
    await asyncio.gather(*(engine.start(lambda message: None) for engine in four))
    yield four
    await asyncio.gather(*(engine.close() for engine in four))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(engines: list[VLLMEngine]) -> list[list[str]]:
    """What one engine alone answers."""
    async with Runtime(Lent(engines[0])) as runtime:
        told = await PROGRAMS.run(runtime)
    assert len({text for texts in told for text in texts}) > 60, "the texts hang on the prompts"
    return told


@pytest.mark.parametrize(("router", "count"), [("agentix", 2), ("prefix", 2), ("least-used", 4)])
async def test_the_texts_are_those_of_one_engine(
    engines: list[VLLMEngine], expected: list[list[str]], router: str, count: int
) -> None:
    """Native programs and LangGraph graphs at once, greedy calls and sampled ones."""
    lent = [Lent(engine) for engine in engines[:count]]
    replicas = ReplicaSet(lambda index: lent[index], count, make_router(router))
    async with Runtime(replicas) as runtime:
        assert await PROGRAMS.run(runtime) == expected
        assert len(runtime.table) == 0
    assert sum(one.calls for one in lent) == 4 * PROGRAMS.count
    assert min(one.calls for one in lent) > 0


async def test_the_router_knows_what_each_engine_holds(
    engines: list[VLLMEngine], expected: list[list[str]]
) -> None:
    """1. After many calls, streamed ones among them, its index is what the engines hold.
    2. What it expects of a prompt is what the engine finds in its cache.
    """
    lent = [Lent(engine) for engine in engines[:2]]
    replicas = ReplicaSet(lambda index: lent[index], 2, make_router("cost"))
    async with Runtime(replicas) as runtime:
        assert await PROGRAMS.run(runtime) == expected
        await knows_what_they_hold(replicas)
        engine, dispatcher = engines[0], replicas.routing.dispatcher
        spec = CallSpec(prompt_token_ids=tuple(range(100, 300)), max_tokens=4)
        length = len(spec.prompt_token_ids or ())
        found = await engine.cached_blocks()
        assert found is not None
        _, size = found
        assert length > 2 * size
        cached = -1
        for number in range(2):
            hashes = engine.block_hashes(spec)
            matches = dispatcher.cached_blocks.match(hashes, size, length - 1)
            call = Call(Identity(f"s/{number}", "s", "t"), spec)
            reply = await last_reply(replicas.generate(call, stream=False))
            assert reply.report.prompt_tokens == length
            cached = reply.report.cached_tokens
            assert cached in matches
        assert cached == max(matches) >= size
        await replicas.end_program("s")


async def test_an_engine_that_runs_out_of_memory(
    engines: list[VLLMEngine], expected: list[list[str]]
) -> None:
    """Its core may take no more than it has. The next long prompt kills it, and its calls run
    on the other engine."""
    lent = [Lent(engine) for engine in engines[2:]]
    replicas = ReplicaSet(lambda i: lent[i], 2, make_router("round-robin"), backoff=LEFT_OUT)
    async with Runtime(replicas):
        [pid] = engines[3].pids()
        taken = _address_space(pid)
        resource.prlimit(pid, resource.RLIMIT_AS, (taken, taken))
        ids = tuple(range(100, 1000))
        calls = [
            Call(
                Identity(f"long/{n}", "long", "t"),
                CallSpec(prompt_token_ids=(n, *ids), max_tokens=4),
            )
            for n in range(8)
        ]
        replies = await asyncio.gather(*(_reply(replicas, call) for call in calls))
        assert replicas.replicas[1].deaths > 0
        alone = [await _reply(Lent(engines[0]), call) for call in calls]
        assert replies == alone


def _address_space(pid: int) -> int:
    """In bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    return pages * resource.getpagesize()


async def _reply(executor: Executor, call: Call) -> str:
    return (await last_reply(executor.generate(call, stream=False))).text


async def test_chaos(options: EngineOptions, expected: list[list[str]]) -> None:
    """Two dozen programs, rounds of them, while two engines are killed and stopped in turn."""
    for seconds in (8.0, 60.0):  # in which a busy machine does more than start engines
        config = ChaosConfig(seconds, every=(0.5, 2.0), hang_in=2)
        notes: list[str] = []
        chaos = Chaos(lambda index: VLLMEngine(options), PROGRAMS, config, notes.append)
        report = await chaos.run(expected)
        assert report.wrong() == [], notes
        assert report.programs >= PROGRAMS.count
        if min(report.kills, report.hangs, report.reruns) > 0:
            break
    assert min(report.kills, report.hangs, report.reruns) > 0, notes
