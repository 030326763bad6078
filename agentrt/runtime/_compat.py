"""What ending a process needs of Python's own modules that they do not promise."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # its own exit function is to be registered first
import threading
from collections.abc import Callable

PYTHON_VERSIONS = "3.11"


def call_before_exit(function: Callable[[], None]) -> None:
    """Call ``function`` when the main thread ends, while threads still work.

    At `atexit` it is too late: concurrent.futures takes no more work then, and an engine
    stops in a worker thread. Functions of threading run last in, first out.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(function)


def run_exit_functions() -> None:
    """Run what `atexit` has, for a process that ends without the interpreter's own end."""
    atexit._run_exitfuncs()
