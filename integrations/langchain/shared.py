"""The portals that all chat models of a process share: one per engine, or per endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from agentrt.integrations.langchain.portal import Portal
from agentrt.runtime import Runtime
from agentrt.runtime._compat import call_before_exit

_PORTALS: dict[Hashable, Portal] = {}
_LENT: list[Portal] = []
_LOCK = threading.Lock()


@contextmanager
def lend(portal: Portal) -> Iterator[None]:
    """While the body runs, all chat models of this process use ``portal`` for their engine."""
    with _LOCK:
        _LENT.append(portal)
    try:
        yield
    finally:
        with _LOCK:
            _LENT.remove(portal)


def engine_portal(model: str | None) -> Portal:
    """The portal to this process's embedded engine for ``model``; None is the default model.

    A lent one may serve another model: it refuses a call that names one.
    """
    with _LOCK:
        if _LENT:
            return _LENT[-1]

    def make() -> Runtime:
        from agentrt.executors.vllm.engine import VLLMEngine
        from agentrt.executors.vllm.options import EngineOptions

        return Runtime(VLLMEngine(EngineOptions(model=model)))

    return shared_portal(("engine", model), make)


def endpoint_portal(base_url: str, **options: Any) -> Portal:
    """The portal to a model at an OpenAI-compatible endpoint, with `OpenAIEndpoint`'s options."""

    def make() -> Runtime:
        from agentrt.executors.openai import OpenAIEndpoint

        return Runtime(OpenAIEndpoint(base_url, **options))

    return shared_portal(("endpoint", base_url, repr(options)), make)


def shared_portal(key: Hashable, make: Callable[[], Runtime]) -> Portal:
    """The portal of that key: a new one if there is none, or if it was closed."""
    with _LOCK:
        portal = _PORTALS.get(key)
        if portal is None or portal.closed:
            portal = _PORTALS[key] = Portal(make)
        return portal


def close_all() -> None:
    """Close every shared portal. The next call of a chat model opens a new one."""
    with _LOCK:
        portals = list(_PORTALS.values())
        _PORTALS.clear()
    for portal in portals:
        portal.close()


call_before_exit(close_all)
