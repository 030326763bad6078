"""Work on another loop ends with those who wait for it, whenever they give up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentrt.errors import EngineDiedError
from agentrt.integrations.langchain.calls import LoopJob


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """One that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


class Work:
    """Never ends by itself; ``live`` counts how often it runs."""

    def __init__(self) -> None:
        self.live = 0

    async def run(self) -> None:
        self.live += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.live -= 1


def test_a_ctrl_c_right_after_the_start_ends_the_work(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst moment: the loop has been told of the work, and nobody waits for it yet."""
    work, real = Work(), loop.call_soon_threadsafe
    presses = iter([KeyboardInterrupt()])

    def pressed(callback: Callable[..., Any], *args: Any) -> asyncio.Handle:
        handle = real(callback, *args)
        for press in presses:
            raise press
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", pressed)
    job = LoopJob(loop, work.run)
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert job.outcome.done()
    assert work.live == 0


def test_one_that_is_stopped_before_it_starts(loop: asyncio.AbstractEventLoop) -> None:
    work = Work()
    job = LoopJob(loop, work.run)
    job.stop()
    with pytest.raises(EngineDiedError, match="was cancelled"):
        job.outcome.result(timeout=0)
    assert work.live == 0


def test_a_closed_loop_takes_no_work() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(EngineDiedError, match="loop of the runtime is closed"):
        LoopJob(loop, Work().run).wait()
