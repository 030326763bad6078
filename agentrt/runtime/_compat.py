"""Private names of Python's standard library that are needed to end a process cleanly."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # must register its exit function before ours
import threading
from collections.abc import Callable

PYTHON_VERSIONS = "3.11"


def call_before_exit(function: Callable[[], None]) -> None:
    """Call ``function`` when the main thread ends, while worker threads still run.

    An `atexit` function would run too late: an engine is stopped in a worker thread, but
    concurrent.futures accepts no work any more when `atexit` functions run. The function that was
    registered last is called first.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(function)


def run_exit_functions() -> None:
    """Run the `atexit` functions, for a process that ends without shutting the interpreter down."""
    atexit._run_exitfuncs()
