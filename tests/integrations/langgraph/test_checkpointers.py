"""The checkpointers that are handed out keep LangGraph's own contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import ProgressCallbacks

from agentrt.integrations.langgraph.threads import open_checkpointer

BASE = {"put", "put_writes", "get_tuple", "list", "delete_thread"}
ADDED = {"delete_for_runs", "copy_thread", "prune"}
"""What the suite knows beside the base; neither saver of LangGraph has it in these versions."""


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_conformance(kind: str, tmp_path: Path) -> None:
    files = iter(range(99))

    @checkpointer_test(name=kind)
    async def fresh() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        text = kind if kind == "memory" else f"sqlite:{tmp_path / f'{next(files)}.db'}"
        async with open_checkpointer(text) as threads:
            yield threads.saver

    ran, failures = list[str](), list[str]()

    def saw(capability: str, test: str, passed: bool, error: str | None) -> None:
        ran.append(capability)
        if not passed:
            failures.append(f"{capability}/{test}: {error}")

    report = await validate(fresh, progress=ProgressCallbacks(on_test_result=saw))
    assert failures == []
    assert set(ran) == BASE
    assert report.passed_all_base()
    missing = {name for name, result in report.results.items() if not result.detected}
    assert missing == ADDED


async def test_a_lasting_checkpointer_writes_before_it_goes_on(tmp_path: Path) -> None:
    async with open_checkpointer(f"sqlite:{tmp_path / 't.db'}") as threads:
        assert (threads.lasting, threads.durability) == (True, "sync")
    async with open_checkpointer("memory") as threads:
        assert (threads.lasting, threads.durability) == (False, "exit")
