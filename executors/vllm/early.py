"""A process that imports vLLM while its parent does, and is the parent's engine core from then on.

vLLM starts its core when the parent has imported vLLM and read the model's configuration, and the
core imports vLLM once more: seconds, one after the other. An `EarlyCore` imports beside the
parent, and is handed what it should run. It is a new program, and no fork: there is nothing of
the parent's in it. Nor does it run the parent's script again, as multiprocessing would have it:
that may start engines as it goes, since users of a chat model write no ``if __name__``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from multiprocessing import get_context, spawn
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

from agentrt.executors.vllm.processes import (
    collections_paused,
    die_with_parent,
    interrupts_blocked,
    leave_interrupts_to_parent,
)

_READ_ONCE = ("LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "CUDA_", "PYTHON")
"""How variables begin that the loader, Python or a library reads as it is loaded."""
_READ_LATER = ("PYTHONBREAKPOINT",)
"""One that Python reads when it is used. Ray sets it where it connects."""
_END_S = 5.0
_SCRIPT = b"__main__"
"""In what is handed over: something of the user's script, which is needed then."""


class EarlyCore(SpawnProcess):
    """A process that waits for what it should run; ``modules`` are imported meanwhile.

    It starts with the variables of ``environment``. To vLLM it is a process like any that it
    would have made: `start` hands over the work.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        reader, self._writer = get_context("spawn").Pipe(duplex=False)
        self._work: tuple[Callable[..., None], Mapping[str, Any]] | None = None
        super().__init__(target=_wait_for_work, name="EngineCore", args=(reader, modules))
        with interrupts_blocked(), _environment(environment), _without_script():
            super().start()
        reader.close()
        self._environment = {**os.environ, **environment}

    def fits(self) -> bool:
        """Whether it is as if it were started now: alive, and what is read once is unchanged."""
        now, then = os.environ, self._environment
        same = all(
            now.get(name) == then.get(name)
            for name in now.keys() | then.keys()
            if name.startswith(_READ_ONCE) and name not in _READ_LATER
        )
        return same and self.is_alive()

    def give(self, target: Callable[..., None], kwargs: Mapping[str, Any]) -> EarlyCore:
        """What it is to run, once it is started."""
        self._work = target, kwargs
        return self

    def start(self) -> None:
        """Hand over the work. If the process has died, that is seen as it would be later on."""
        work = bytes(ForkingPickler.dumps(self._work))
        told = spawn.get_preparation_data(self.name) if _SCRIPT in work else {}
        script = {name: told[name] for name in told if name.startswith("init_main_")}
        with contextlib.suppress(OSError), self._writer:
            self._writer.send((dict(os.environ), sys.path, script))
            self._writer.send_bytes(work)

    def dismiss(self) -> None:
        """End it, unless it has something to run by now."""
        if not self._writer.closed:
            self._writer.close()
            self.kill()
            self.join(_END_S)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Start processes with these variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _without_script() -> Iterator[None]:
    """Start processes that do not import the program that this one runs."""
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _wait_for_work(reader: Connection, modules: Sequence[str]) -> None:
    leave_interrupts_to_parent()
    die_with_parent()
    with collections_paused():
        for name in modules:
            with contextlib.suppress(ImportError):  # the parent says what is missing
                import_module(name)
    gc.freeze()  # modules stay: the collections with which vLLM's start ends need not look at them
    try:
        environment, path, script = reader.recv()
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path
        spawn.prepare(script)
        target, kwargs = reader.recv()
    except EOFError:  # it was dismissed
        return
    reader.close()
    target(**kwargs)
