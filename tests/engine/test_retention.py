"""A real engine keeps the context of a program that waits, whatever it waits for.

Three contexts want two thirds of the memory: that of a program that is away, that of one that waits
for a human, and a third one's call, which takes the blocks of whoever comes back last.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentrt import Context, Runtime, SchedulerConfig, program
from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.graph import NodeKind
from agentrt.integrations.mqtt import MqttTools, Worker
from agentrt.runtime.events import Event, NodeStarted
from tests.doubles.tinymodel import tiny_model
from tests.engine.lent import Lent
from tests.engine.waiting_tools import wait, wait_at_a_worker, wait_in_a_process
from tests.integrations.mqtt.conftest import Alarms, broker, mosquitto, running  # noqa: F401  # fixtures
from tests.integrations.mqtt.side import publish_once

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

BLOCK, BLOCKS = 32, 32
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "800", "--block-size", str(BLOCK)),
    *("--num-gpu-blocks-override", str(BLOCKS)),
)
WORDS, MORE = 370, 600
"""Of one token each: 12 blocks, and 20."""
WAYS = ("thread", "process", "mqtt", "event")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VLLMEngine]:
    model = str(tiny_model(tmp_path_factory.mktemp("models") / "tiny"))
    config = SchedulerConfig(policy="atlas", retention="cost")
    engine = VLLMEngine(EngineOptions(model, 2, flags=FLAGS, scheduler=config))
    await engine.start(lambda _: None)
    yield engine
    await engine.close()


async def go_away(ctx: Context, way: str, fifo: str) -> None:
    """Wait outside the engine, in one of the ways."""
    if way == "thread":
        await ctx.tool(wait, fifo)
    elif way == "process":
        await ctx.tool(wait_in_a_process, fifo=fifo)
    elif way == "mqtt":
        await ctx.tool("wait_at_a_worker", fifo=fifo)
    else:
        await ctx.event("alarm")


async def asked(ctx: Context, word: str, times: int = WORDS) -> int:
    """Cached tokens of a call whose whole prompt is one word."""
    reply = await ctx.llm(" ".join([word] * times), max_tokens=2, ignore_eos=True)
    assert reply.report is not None
    return reply.report.cached_tokens


@pytest.mark.parametrize("way", WAYS)
async def test_who_is_away_keeps_its_context_and_who_waits_for_a_human_does_not(
    engine: VLLMEngine,
    way: str,
    tmp_path: Path,
    mosquitto: Any,  # noqa: F811
) -> None:
    fifo = str(tmp_path / "go")
    os.mkfifo(fifo)
    at = mosquitto.broker(f"retention/{way}")
    gone = asyncio.Event()

    @program
    async def away(ctx: Context) -> int:
        assert await asked(ctx, "cat") < 2 * BLOCK
        await go_away(ctx, way, fifo)
        return await asked(ctx, "cat")

    @program
    async def asks(ctx: Context) -> int:
        assert await asked(ctx, "dog") < 2 * BLOCK
        await ctx.human("Shall I go on?")
        return await asked(ctx, "dog")

    @program
    async def other(ctx: Context) -> None:
        await asked(ctx, "bird", MORE)

    def saw(event: Event) -> None:
        if isinstance(event, NodeStarted) and event.node.kind in (NodeKind.TOOL, NodeKind.EVENT):
            gone.set()

    await engine.forget_prefixes()
    alarms = Alarms(at)
    runtime = Runtime(Lent(engine), tools=[MqttTools(at)], events=alarms, ask_human=None)
    async with running(Worker(at, [wait_at_a_worker])), runtime:
        runtime.listen(saw)
        # Of equals the one that came last loses its blocks first: the human is asked before.
        second = runtime.start(asks)
        while not runtime.questions.open:
            await asyncio.sleep(0.005)
        first = runtime.start(away)
        await gone.wait()
        await runtime.start(other).wait()
        if way == "event":
            await alarms.subscribed.wait()
            await publish_once(at, "alarm", b"1")
        else:
            await asyncio.to_thread(Path(fifo).write_text, "go", encoding="utf-8")
        assert await first.wait() >= WORDS // BLOCK * BLOCK
        [question] = runtime.questions.open
        runtime.questions.answer(question, "yes")
        assert await second.wait() < WORDS // 2
