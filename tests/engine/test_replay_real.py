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
from agentrt.engines import EngineOptions
from agentrt.executors.chat_api import Frontend
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.store import SQLiteStore
from agentrt.lab.reports.standard import standard
from agentrt.lab.runs import real
from agentrt.lab.runs.contenders import contenders
from agentrt.lab.runs.grid import Setting, Source, grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.real import RealReplay
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
    for turn in range(3):
        reply = await ctx.llm(messages, max_tokens=33 + turn, temperature=1.0)
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
    """The engine computes prompts and outputs as long as recorded, and finds in its cache all that
    was said before: what a program asked is the recorded text, what it was answered is its own.
    """
    front, engine = await token_runtime.frontend(), engine_of(token_runtime)
    monkeypatch.setattr(front, "close", AsyncMock())
    recording = await recorded(tmp_path / "j", token_runtime, front)

    @asynccontextmanager
    async def running(_: object) -> AsyncIterator[None]:
        yield

    async def its_front(_: object) -> Frontend:
        return front

    monkeypatch.setattr(real, "engine_for", lambda one, base: engine)
    monkeypatch.setattr(real, "open_frontend", its_front)
    setting = Setting(Source("j", tmp_path / "j"), Pressure("recorded"))
    everyone = contenders(["fcfs", "atlas"])
    [spec, _] = grid([setting], everyone, [0], Machine())
    replay = RealReplay(recording, spec, everyone, EngineOptions(), running, lambda *told: None)
    await replay.run()
    asked = [call.account["prompt_tokens"] for call in recording.calls]
    said = [call.account["output_tokens"] for call in recording.calls]
    assert said == [33, 34, 35] * 2
    cached = sum(recording.calls[first].account.get("cached_tokens", 0) for first in (0, 3))
    # The last token of an output is computed with what comes after it; 32 are a block.
    cached += sum((asked[one] + said[one] - 1) // 32 * 32 for one in (0, 1, 3, 4))
    for after in replay.results:
        hits = standard(after.outcomes)["prefix_cache_hit_rate"]
        assert hits == pytest.approx(cached / sum(asked))
        assert sum(one.output_tokens for one in after.outcomes) == sum(said)
        assert after.summary.service_share > 0
