"""An engine starts and stops although threads of programs fill the event loop's pool."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from agentrt.executors.vllm.processes import apart


async def test_work_of_an_engine_needs_no_thread_of_the_pool() -> None:
    """The only thread of the pool waits for what the engine's own thread does."""
    done = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, done.wait, 60)
    await apart(done.set)
    assert await waiting
