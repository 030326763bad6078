"""Middleware that all chat models of a process share: one per engine, or per remote endpoint."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # see _at_exit: its own exit hook comes first
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from agentrt.integrations.langchain.portal import Portal
from agentrt.runtime import Runtime

_DOORS: dict[Hashable, Portal] = {}
_LENT: list[Portal] = []
_LOCK = threading.Lock()


@contextmanager
def lend(door: Portal) -> Iterator[None]:
    """Meanwhile ``door`` leads to the embedded engine, for all chat models of this process."""
    with _LOCK:
        _LENT.append(door)
    try:
        yield
    finally:
        with _LOCK:
            _LENT.remove(door)


def engine_door(model: str | None) -> Portal:
    """The door to this process's embedded engine for ``model``; None is the default model.

    A lent one may serve another model: it refuses a call that names one.
    """
    with _LOCK:
        if _LENT:
            return _LENT[-1]

    def make() -> Runtime:
        from agentrt.executors.vllm.engine import VLLMEngine
        from agentrt.executors.vllm.options import EngineOptions

        return Runtime(VLLMEngine(EngineOptions(model=model)))

    return shared_door(("engine", model), make)


def endpoint_door(base_url: str, api_key: str | None, model: str | None, retries: int) -> Portal:
    """The door to ``model`` at an OpenAI-compatible endpoint; None is the first that it has."""

    def make() -> Runtime:
        from agentrt.executors.openai import OpenAIEndpoint

        return Runtime(OpenAIEndpoint(base_url, model=model, api_key=api_key, max_retries=retries))

    return shared_door(("endpoint", base_url, api_key, model, retries), make)


def shared_door(key: Hashable, make: Callable[[], Runtime]) -> Portal:
    """The door of that key: a new one if there is none, or if it was closed."""
    with _LOCK:
        door = _DOORS.get(key)
        if door is None or door.closed:
            door = _DOORS[key] = Portal(make)
        return door


def close_all() -> None:
    """Close every shared door. The next call of a chat model opens a new one."""
    with _LOCK:
        doors = list(_DOORS.values())
        _DOORS.clear()
    for door in doors:
        door.close()


def _at_exit(hook: Callable[[], None]) -> None:
    """Run ``hook`` when the main thread ends, while threads still work.

    At `atexit` it is too late: concurrent.futures takes no more work then, and an engine
    stops in a worker thread. Hooks of threading run last in, first out.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(hook)


_at_exit(close_all)
