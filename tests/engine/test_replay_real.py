"""A journal of the session's engine, replayed on it: the same tokens are computed and found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from agentrt import Context, Runtime, program
from agentrt.cli.journals import describe_engine
from agentrt.executors.frontend import Frontend
from agentrt.executors.vllm.options import EngineOptions
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.store import SQLiteStore
from agentrt.lab.bench import replays
from agentrt.lab.bench.replays import RealReplay
from agentrt.lab.runs.contenders import contenders
from agentrt.lab.runs.grid import grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.replays import as_recorded
from agentrt.lab.runs.settings import Setting, Source
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.journals import Recording, read_recording
from agentrt.runtime.durable import Durable
from agentrt.scheduler import SchedulerConfig
from tests.contexts.real import engine_of, fresh
from tests.engine.lent import Lent

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


class LentWithFront(Lent):
    def __init__(self, runtime: Runtime, front: Frontend) -> None:
        super().__init__(engine_of(runtime))
        self._front = front

    def own_frontend(self, names: object) -> Frontend:
        return self._front


@program
async def chat(ctx: Context, topic: str) -> None:
    """Each turn asks with all that was said."""
    messages = [{"role": "user", "content": f"Tell me all that you know about {topic}. " * 6}]
    for turn in range(4):
        reply = await ctx.llm(messages, max_tokens=40 + turn, temperature=1.0)
        await ctx.tool(asyncio.sleep, 0)
        messages += [reply.message, {"role": "user", "content": f"And then? {turn}"}]


async def recorded(path: Path, runtime: Runtime, front: Frontend) -> Recording:
    """Two programs, one after the other, on an engine that has computed nothing."""
    await fresh(runtime)
    lent = LentWithFront(runtime, front)
    async with (
        await Journal.open(lambda: SQLiteStore(path), JournalOptions()) as journal,
        Runtime(lent, journal=journal) as recording,
    ):
        await describe_engine(recording, SchedulerConfig("fcfs"))
        for topic in ("tea", "the sea"):
            await recording.start(chat, topic, durable=Durable()).wait()
    return read_recording(path)


async def test_what_a_real_engine_did_it_does_again(
    tmp_path: Path, token_runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each policy finds as much of the prompts in the cache as was found there when they were
    recorded, though the model says other things: those are in the later prompts.
    """
    front, engine = await token_runtime.frontend(), engine_of(token_runtime)
    monkeypatch.setattr(front, "close", AsyncMock())
    recording = await recorded(tmp_path / "j", token_runtime, front)

    @asynccontextmanager
    async def running(_: object) -> AsyncIterator[None]:
        yield

    async def its_front(_: object) -> Frontend:
        return front

    monkeypatch.setattr(replays, "engine_for", lambda one, base: engine)
    monkeypatch.setattr(replays, "open_frontend", its_front)
    setting = Setting(Source("j", tmp_path / "j"), Pressure("recorded"))
    everyone = contenders(["fcfs", "atlas"])
    [spec, _] = grid([setting], everyone, [0], Machine())
    replay = RealReplay(recording, spec, everyone, EngineOptions(), running, lambda *told: None)
    await replay.run()
    before = as_recorded(recording, spec).summary
    assert before.prefix_hit_share is not None
    assert 0.6 < before.prefix_hit_share < 0.9
    for after in replay.results:
        assert after.summary.prefix_hit_share == before.prefix_hit_share
        assert sum(one.output_tokens for one in after.outcomes) == 2 * (40 + 41 + 42 + 43)
        assert after.summary.service_share > 0
