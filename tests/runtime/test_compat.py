"""The internals of Python that end a process exist: a failure names the changed part."""

from __future__ import annotations

import atexit
import subprocess
import sys
import threading

from agentrt.runtime import _compat

SCRIPT = """
import asyncio
from agentrt.runtime._compat import call_before_exit, run_exit_functions
import atexit

async def work():
    await asyncio.to_thread(print, "in a worker thread")

call_before_exit(lambda: asyncio.run(work()))
atexit.register(print, "at exit")
run_exit_functions()
"""


def changed(what: str) -> str:
    known, here = _compat.PYTHON_VERSIONS, sys.version.split()[0]
    return f"Python {here}: {what}; agentrt.runtime._compat knows Python {known}"


def test_the_functions_called_before_the_exit() -> None:
    assert hasattr(threading, "_register_atexit"), changed("threading has no `_register_atexit`")
    assert hasattr(atexit, "_run_exitfuncs"), changed("atexit has no `_run_exitfuncs`")
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = changed("exit functions run in another order, or worker threads are gone by then")
    assert done.stdout.splitlines() == ["at exit", "in a worker thread"], told + done.stderr
