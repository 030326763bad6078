"""No engine is left behind if its start is given up."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentrt.engines import EngineOptions, VLLMEngine
from agentrt.executors.vllm import lifetime


class Slow(VLLMEngine):
    """An engine that loads until it may end. What it loads is not a real engine."""

    def __init__(self) -> None:
        super().__init__(EngineOptions())
        self.begun, self.may_end = threading.Event(), threading.Event()

    def _load(self, core: Any = None) -> Any:
        self.begun.set()
        assert self.may_end.wait(60)
        return "engine"


async def test_an_engine_that_comes_too_late_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()

    async def shut_down(llm: Any) -> None:
        ended.put_nowait(llm)

    monkeypatch.setattr(lifetime, "shut_down", shut_down)
    slow = Slow()
    loading = asyncio.create_task(slow._loaded())
    assert await asyncio.to_thread(slow.begun.wait, 60)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await slow.close()
    slow.may_end.set()
    async with asyncio.timeout(60):
        assert await ended.get() == "engine"
