"""What --replicas, --policy and --history make together: engines, and the set around them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentrt.cli import engines as module
from agentrt.cli.engines import Fleet, make_executor
from agentrt.executors.base import Executor
from agentrt.executors.memory import read
from agentrt.executors.vllm.options import EngineOptions
from agentrt.scheduler import ProgramTotals, SchedulerConfig
from agentrt.testing.scripted import ScriptedExecutor


async def test_the_set_keeps_the_history_and_its_engines_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[EngineOptions] = []

    def here(options: list[EngineOptions]) -> Callable[[int], Executor]:
        made.extend(options)
        return lambda index: ScriptedExecutor()

    monkeypatch.setattr(module, "_here", here)
    path = tmp_path / "history.json"
    kept = SchedulerConfig("adaptive", history=str(path), lane=0.2)
    replicas = make_executor(EngineOptions(scheduler=kept), Fleet(2), lambda message: None)
    await replicas.start(lambda message: None)
    await replicas.end_program("p", ProgramTotals("p", "t", service_s=3.0))
    await replicas.close()
    own = SchedulerConfig("adaptive", lane=0.2)
    assert [options.scheduler for options in made] == [own, own]
    assert read(path)["cells"]
