"""What is done around the start of an engine's process."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

from agentrt.executors.vllm.processes import apart, collections_paused


def test_collections_go_on_after_a_pause_and_not_where_they_were_off() -> None:
    """Two engines may start at once, and the first to be done ends the pause."""
    with collections_paused():
        assert not gc.isenabled()
        with collections_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with collections_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


async def test_work_of_an_engine_needs_no_thread_of_the_pool() -> None:
    """The only thread of the pool waits for what the engine's own thread does."""
    done = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, done.wait, 60)
    await apart(done.set)
    assert await waiting
