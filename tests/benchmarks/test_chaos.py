"""The chaos run itself, on engines whose core is a process that does nothing but live."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, Progress
from agentrt.executors.replicas import Health
from agentrt.executors.vllm.processes import cpu_seconds
from agentrt.request import Call, CallSpec, Identity, Reply
from benchmarks.chaos.command import Chaos, ChaosConfig
from benchmarks.chaos.programs import ChaosPrograms
from benchmarks.chaos.report import CallAudit
from tests.doubles.scripted import ScriptedExecutor

LIVES = "import time\nwhile True: time.sleep(3600)"
CORES: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _all_end() -> Iterator[None]:
    yield
    for core in CORES:
        core.kill()
        core.wait()
    CORES.clear()


class Engine(ScriptedExecutor):
    """Says what the prompt says, as long as its core lives and is not stopped."""

    def __init__(self, *, lies: bool = False) -> None:
        super().__init__(lambda call: str(call.spec.messages or "")[-24:] + "!" * lies)
        self._core: subprocess.Popen[bytes] | None = None

    async def start(self, progress: Progress) -> None:
        await super().start(progress)
        self._core = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-S", "-c", LIVES])
        CORES.append(self._core)

    def alive(self) -> bool:
        return self._core is not None and self._core.poll() is None

    def pids(self) -> list[int]:
        return [] if self._core is None else [self._core.pid]

    async def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, self.pids()))

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        async with contextlib.aclosing(super().generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                await asyncio.sleep(0.001)  # a step
                await self._answers()
                yield chunk

    async def snapshot(self) -> Any:
        await self._answers()
        return {**await super().snapshot(), "programs": []}

    async def _answers(self) -> None:
        if not self.alive():
            raise EngineDiedError("the core is gone")
        if _state(self.pids()[0]) == "T":
            await asyncio.Event().wait()

    async def close(self) -> None:
        await super().close()
        if self._core is not None:
            self._core.kill()
            await asyncio.to_thread(self._core.wait)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


QUICK = Health(every_s=0.01, stall_s=0.02)
CONFIG = ChaosConfig(seconds=1.0, every=(0.05, 0.1), hang_in=3, health=QUICK)
LONGER = (CONFIG, replace(CONFIG, seconds=10.0), replace(CONFIG, seconds=60.0))
"""A busy machine takes longer to start engines that can be killed."""


async def test_answers_stay_right_while_engines_die() -> None:
    """Kills and hangs happen, calls run again, and nothing is left."""
    for config in LONGER:
        notes: list[str] = []
        chaos = Chaos(lambda index: Engine(), ChaosPrograms(8, 4), config, notes.append)
        report = await chaos.run()
        assert report.wrong() == []
        assert report.programs == report.right >= 8
        assert report.calls == 4 * report.programs
        assert report.starts == report.kills + report.hangs
        if min(report.kills, report.hangs, report.reruns) > 0:
            break
    assert min(report.kills, report.hangs, report.reruns) > 0
    assert "| programs, of which right" in report.table()
    assert "making the expected answers on one engine" in notes


async def test_other_answers_are_told() -> None:
    engines = iter([False, True, True])
    quiet = ChaosConfig(seconds=0.01, every=(60, 60))
    chaos = Chaos(
        lambda index: Engine(lies=next(engines)), ChaosPrograms(3, 99), quiet, lambda note: None
    )
    report = await chaos.run()
    assert report.wrong() == [f"{report.programs} programs gave wrong answers"]


async def test_something_happens_to_the_machines_in_the_middle() -> None:
    outages: list[int] = []

    async def outage() -> None:
        outages.append(1)

    config = ChaosConfig(seconds=0.1, every=(60, 60))
    await Chaos(
        lambda index: Engine(), ChaosPrograms(2, 4), config, lambda note: None, outage
    ).run()
    assert outages == [1]


async def test_the_audit_finds_what_must_not_be() -> None:
    """A call that runs after its delivery, one that is delivered twice, and a stream that lies."""
    call = Call(Identity("p/0", "p", "t"), CallSpec())

    class Liar(ScriptedExecutor):
        async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
            yield Chunk("one ")
            yield Chunk("two", Reply("one three"))

    audit = CallAudit()
    watched = audit.front(audit.engine(Liar()))
    for _ in range(2):
        assert [chunk.text async for chunk in watched.generate(call, stream=True)]
    assert audit.faults == [
        "p/0 streamed a text that differs from its reply",
        "p/0 ran again after it was delivered",
        "p/0 was delivered twice",
        "p/0 streamed a text that differs from its reply",
    ]
