"""What happens around the start of an engine's process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrt.executors.vllm.processes import collections_paused, in_new_thread, keep_heap_frozen


def test_collections_go_on_after_a_pause_and_not_where_they_were_off() -> None:
    """Two engines may start at once; the one that began the pause ends it."""
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
    """The only thread of the pool waits for the work that the engine does in its own thread."""
    done = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    waiting = loop.run_in_executor(None, done.wait, 60)
    await in_new_thread(done.set)
    assert await waiting


SCRIPT = """
from multiprocessing import get_context
from agentrt.executors.vllm.processes import script_left_out

class Own:
    pass

print("runs", flush=True)
if __name__ == "__main__":
    with script_left_out(%s):
        process = get_context("spawn").Process(target=print, args=("works",))
        process.start()
    process.join()
"""


@pytest.mark.parametrize(("config", "runs"), [("{}", 1), ("Own()", 2)])
def test_a_script_is_run_again_only_for_what_is_its_own(
    tmp_path: Path, config: str, runs: int
) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT % config)
    run = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("runs\n" * runs + "works\n", "")


def test_nothing_stays_frozen_in_the_parent() -> None:
    thaw = gc.unfreeze
    keep_heap_frozen()
    assert gc.unfreeze is thaw
