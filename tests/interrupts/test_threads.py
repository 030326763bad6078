"""Threads for tools: as many as block at once, and none that somebody has to wait for."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from agentrt.interrupts.local import ToolThreads

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


async def test_as_many_run_as_block_and_they_are_used_again() -> None:
    threads, gate = ToolThreads(), threading.Barrier(50)
    await asyncio.gather(*(threads.run(gate.wait) for _ in range(50)))
    names = {await threads.run(lambda: threading.current_thread().name) for _ in range(20)}
    assert len(names) <= 50
    threads.close()


async def test_beyond_the_most_they_wait() -> None:
    threads, open_ = ToolThreads(most=1), threading.Event()
    first = asyncio.create_task(threads.run(open_.wait))
    second = asyncio.create_task(threads.run(lambda: "second"))
    await asyncio.sleep(0)
    assert not second.done()
    open_.set()
    assert (await first, await second) == (True, "second")
    threads.close()


async def test_it_runs_in_the_callers_context_and_its_error_is_the_callers() -> None:
    threads = ToolThreads()
    WHO.set("me")
    assert await threads.run(WHO.get) == "me"
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    threads.close()


async def test_one_that_is_left_behind_disturbs_nobody() -> None:
    """Its result is dropped; its thread is used again when it is over after all."""
    threads, open_, over = ToolThreads(most=1), threading.Event(), threading.Event()

    def hang() -> None:
        open_.wait()
        over.set()

    hanging = asyncio.create_task(threads.run(hang))
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert not over.is_set()
    open_.set()
    assert await threads.run(over.is_set)
    threads.close()


HANGS = """
import asyncio, threading
from agentrt import Runtime, program
from tests.doubles.scripted import ScriptedExecutor

@program
async def main(ctx):
    try:
        await ctx.tool(threading.Event().wait, timeout=0.01)
    except TimeoutError:
        return "late"

async def run():
    async with Runtime(ScriptedExecutor()) as runtime:
        print(await runtime.start(main).wait())

asyncio.run(run())
"""


def test_a_process_ends_though_a_tool_hangs() -> None:
    script = [sys.executable, "-c", HANGS]
    done = subprocess.run(script, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "late\n"
