"""A run of the real engine, taken again by the scheduler alone: the same batch at every step.

The KV cache is small, so that prefixes are evicted and calls preempted. Which calls
meet in a batch depends on how fast the machine is; that both decide alike must not.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context, Runtime, SchedulerConfig, program
from agentrt.engines import EngineOptions
from tests.doubles.tinymodel import tiny_model
from tests.engine.host_memory import copying
from tests.lab.engine.recording import RecordedEngine, read
from tests.lab.engine.replaying import replay

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

SCHEDULER = SchedulerConfig(
    policy="atlas", quanta=(0.002, 0.008, 0.032), min_running_steps=0, min_remaining_tokens=0
)
FLAGS = (
    *("--dtype", "float32", "--max-model-len", "512", "--max-num-batched-tokens", "128"),
    *("--num-gpu-blocks-override", "24"),
)


@program
async def chat(ctx: Context, turns: int) -> None:
    """Each turn's prompt is the whole chat before it."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Tell me {turns} things."}]
    for turn in range(turns):
        reply = await ctx.llm(messages, max_tokens=3 + turn, ignore_eos=True)
        messages += [reply.message, {"role": "user", "content": f"And number {turn}?"}]


@program
async def fan(ctx: Context, width: int) -> None:
    """Parallel calls with a tool before each, and one that gathers."""

    async def look(number: int) -> str:
        await ctx.tool(asyncio.sleep, 0.01 * number)
        return str(
            await ctx.llm(f"Give a fact about {number}.", max_tokens=2 + number, ignore_eos=True)
        )

    facts = await asyncio.gather(*(look(n) for n in range(width)))
    await ctx.llm(f"Sum up: {' '.join(facts)}", max_tokens=8)


@program
async def quitter(ctx: Context) -> None:
    """It leaves its call before the end."""
    async for _ in ctx.llm("Count to a hundred.", stream=True, max_tokens=200, ignore_eos=True):
        break


@program
async def returner(ctx: Context, word: str) -> None:
    """It comes back with its context after a tool."""
    context = " ".join([word] * 75)
    for turn in range(3):
        reply = await ctx.llm(context, max_tokens=6, ignore_eos=True)
        context += f"{reply.text} {turn}"
        await ctx.tool(asyncio.sleep, 0.05)


async def record_run(
    path: Path, model: str, scheduler: SchedulerConfig = SCHEDULER, flags: tuple[str, ...] = ()
) -> None:
    """Programs in waves on a real engine, recorded."""
    options = EngineOptions(model, 4, scheduler=scheduler, flags=(*FLAGS, *flags))
    engine = RecordedEngine(options)
    async with Runtime(engine) as runtime:
        await runtime.start(chat, 1).wait()  # what came before must not matter
        await engine.record(path)
        runs = []
        for wave in range(13):
            runs += [runtime.start(chat, 4 + wave % 3), runtime.start(chat, 3)]
            runs += [runtime.start(fan, 5), runtime.start(fan, 2), runtime.start(quitter)]
            if flags:
                runs += [runtime.start(returner, f"{word} {wave}") for word in ("cat", "dog")]
            if wave % 2:
                await runs[-5].wait()
        for run in runs:
            await run.wait()
        await engine.record(None)


async def test_a_run_of_the_real_engine_is_decided_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    await record_run(path, str(tiny_model(tmp_path / "tiny")))
    events = list(read(path))
    kinds = [event["event"] for event in events]
    assert kinds[0] == "start"
    assert kinds[-1] == "stop"
    aborted = sum(len(event["ids"]) for event in events if event["event"] == "finish")

    again = replay(path)
    assert again.difference is None, str(again.difference)
    assert again.calls == kinds.count("add")
    assert again.calls >= 200
    assert min(again.preemptions, again.cached_tokens, aborted) > 0

    # What finds no difference there finds one where there is one.
    assert replay(events, {"policy": "fcfs"}).difference is not None
    assert replay(events, {"quanta": [0.1]}).difference is not None
    events[0] = {**events[0], "engine": {**events[0]["engine"], "blocks": 20}}
    assert replay(events).difference is not None


CHUNKS = 40
"""Blocks of host memory: less than the contexts that are used again."""


async def test_a_run_that_offloads_to_host_memory_is_decided_the_same_again(tmp_path: Path) -> None:
    """Which call is loaded when, and which blocks of host memory are evicted for which."""
    path = tmp_path / "run.jsonl"
    scheduler = replace(SCHEDULER, retention="cost", admission="memory")
    flags = ("--kv-transfer-config", json.dumps(copying(CHUNKS)))
    await record_run(path, str(tiny_model(tmp_path / "tiny")), scheduler, flags)
    events = list(read(path))
    steps = [event for event in events if event["event"] == "schedule"]
    assert any(step["loads"] for step in steps)
    stored = [block for step in steps for _, blocks in step["stores"] for block in blocks]
    assert len(stored) > len(set(stored)) == CHUNKS, "host memory was never full"

    again = replay(path)
    assert again.difference is None, str(again.difference)
    assert min(again.loaded_tokens, again.cached_tokens) > 0

    # What finds no difference there finds one where there is one.
    assert replay(events, {"retention": "lru"}).difference is not None
    host = events[0]["engine"]["host"]
    small = {**events[0]["engine"], "host": {**host, "blocks": CHUNKS // 2}}
    difference = replay([{**events[0], "engine": small}, *events[1:]]).difference
    assert difference is not None
