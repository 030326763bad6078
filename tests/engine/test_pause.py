"""`pause_generation` of a real engine: what runs ends or stays, and nothing takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agentrt import Reply, SchedulerConfig
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.request import Call, CallSpec, Identity
from agentrt.request.weights import MODES, PauseMode
from tests.doubles.tinymodel import tiny_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

FLAGS = ("--dtype", "float32", "--max-model-len", "1900", "--kv-cache-memory-bytes", "8000000")
SLOTS = 2
LONG = 200
"""Output tokens of a call that runs until a pause has begun."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMEngine]:
    model = str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    engine = VLLMEngine(EngineOptions(model, SLOTS, flags=FLAGS))
    await engine.start(lambda _: None)
    yield engine
    await engine.close()


async def call(engine: VLLMEngine, name: str, tokens: range, outputs: int, type: str) -> Reply:
    identity = Identity(name, f"p-{name}", type)
    spec = CallSpec(prompt_token_ids=tuple(tokens), max_tokens=outputs, ignore_eos=True)
    reply = None
    async for chunk in engine.generate(Call(identity, spec), stream=False):
        reply = chunk.reply or reply
    await engine.end_program(f"p-{name}")
    assert reply is not None
    return reply


async def running(engine: VLLMEngine, count: int) -> None:
    """Wait until so many calls run."""
    while len((await engine.snapshot())["running"]) < count:
        await asyncio.sleep(0.005)


async def two_long_and_two_short(engine: VLLMEngine, config: SchedulerConfig) -> Any:
    """Two long calls run in both slots; two short ones of a known kind wait behind them."""
    await engine.configure(config)
    await engine.forget_prefixes()
    for number in range(4):
        await call(engine, f"h{number}", range(10, 13), 50, "long")
        await call(engine, f"g{number}", range(20, 22), 2, "short")
    long = [
        asyncio.ensure_future(call(engine, f"long{n}", range(10 + n, 300 + n), LONG, "long"))
        for n in range(SLOTS)
    ]
    await running(engine, SLOTS)
    short = [
        asyncio.ensure_future(call(engine, f"short{n}", range(30 + n, 33 + n), 2, "short"))
        for n in range(2)
    ]
    return long, short


@pytest.mark.parametrize("policy", ["fcfs", "atlas", "plas", "mlfq", "adaptive"])
async def test_a_pause_that_waits_ends_when_all_that_runs_has_ended(
    engine: VLLMEngine, policy: str
) -> None:
    long, short = await two_long_and_two_short(engine, SchedulerConfig(policy=policy))
    llm = engine._engine()
    await asyncio.wait_for(llm.pause_generation(mode="wait", clear_cache=False), 60)
    snapshot = await engine.snapshot()
    assert not snapshot["running"]
    await llm.resume_generation()
    replies = await asyncio.gather(*long, *short)
    assert [len(reply.token_ids) for reply in replies] == [LONG, LONG, 2, 2]


@pytest.mark.parametrize("policy", ["fcfs", "atlas", "adaptive"])
async def test_a_pause_that_keeps_leaves_what_runs_where_it_is(
    engine: VLLMEngine, policy: str
) -> None:
    long, short = await two_long_and_two_short(engine, SchedulerConfig(policy=policy))
    llm = engine._engine()
    await asyncio.wait_for(llm.pause_generation(mode="keep", clear_cache=False), 60)
    before = await engine.snapshot()
    for _ in range(20):
        assert (await engine.snapshot())["running"] == before["running"]
    await llm.resume_generation()
    replies = await asyncio.gather(*long, *short)
    assert [len(reply.token_ids) for reply in replies] == [LONG, LONG, 2, 2]


@pytest.mark.parametrize("policy", ["fcfs", "atlas", "adaptive"])
async def test_a_pause_that_aborts_ends_all_and_the_engine_goes_on(
    engine: VLLMEngine, policy: str
) -> None:
    long, short = await two_long_and_two_short(engine, SchedulerConfig(policy=policy))
    llm = engine._engine()
    await asyncio.wait_for(llm.pause_generation(mode="abort", clear_cache=True), 60)
    ended = await asyncio.gather(*long, return_exceptions=True)
    assert len(ended) == SLOTS
    await llm.resume_generation()
    await asyncio.gather(*short, return_exceptions=True)
    again = await call(engine, "again", range(50, 60), 3, "short")
    assert len(again.token_ids) == 3


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_arrives_during_a_pause_runs_after_it(
    engine: VLLMEngine, mode: PauseMode
) -> None:
    await engine.configure(SchedulerConfig())
    await engine.pause_generation(mode)
    try:
        late = asyncio.ensure_future(call(engine, f"late-{mode}", range(60, 64), 3, "short"))
        while not (late.done() or (await engine.snapshot())["waiting"]):
            await asyncio.sleep(0.005)
    finally:
        await engine.resume_generation()
    assert len((await late).token_ids) == 3
