"""Work that takes turns in a thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from agentrt.executors.vllm.turns import SharedThread


async def test_the_error_of_work_whose_caller_has_left_is_not_logged() -> None:
    """For example that of a prompt that is too long, after its client has disconnected."""
    loop, began, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    logged: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: logged.append(context))

    def fail() -> None:
        loop.call_soon_threadsafe(began.set)
        go.wait()
        raise ValueError("too long")

    thread = SharedThread("test")
    calling = asyncio.create_task(thread.run(fail, "ann"))
    await began.wait()
    calling.cancel()
    waiting = asyncio.create_task(thread.run(lambda: "next", "ben"))
    await asyncio.sleep(0)
    assert not calling.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert await waiting == "next"
    del calling
    gc.collect()
    assert not logged


async def test_a_caller_that_is_cancelled_twice_waits_for_its_work() -> None:
    """Otherwise the work of the next owner would count as begun while the thread is busy."""
    loop, began, go = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        go.wait()

    calling = asyncio.create_task(SharedThread("test").run(work, "ann"))
    await began.wait()
    for _ in range(2):
        calling.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not calling.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
