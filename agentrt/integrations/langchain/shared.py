"""The clients that all chat models of a process share: one per engine, or per endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from agentrt.integrations.langchain.client import RuntimeClient
from agentrt.runtime import Runtime
from agentrt.runtime._compat import call_before_exit

_CLIENTS: dict[Hashable, RuntimeClient] = {}
_LENT: list[RuntimeClient] = []
_LOCK = threading.Lock()


@contextmanager
def lend(client: RuntimeClient) -> Iterator[None]:
    """While the body runs, all chat models of this process use ``client`` for their engine."""
    with _LOCK:
        _LENT.append(client)
    try:
        yield
    finally:
        with _LOCK:
            _LENT.remove(client)


def engine_client(model: str | None) -> RuntimeClient:
    """The client to this process's embedded engine for ``model``; None is the default model.

    A lent one may serve another model: it refuses a call that names one.
    """
    with _LOCK:
        if _LENT:
            return _LENT[-1]

    def make() -> Runtime:
        from agentrt.executors.vllm.engine import VLLMEngine
        from agentrt.executors.vllm.options import EngineOptions

        return Runtime(VLLMEngine(EngineOptions(model=model)))

    return shared_client(("engine", model), make)


def endpoint_client(base_url: str, **options: Any) -> RuntimeClient:
    """The client to a model at an OpenAI-compatible endpoint, with `OpenAIEndpoint`'s options."""

    def make() -> Runtime:
        from agentrt.executors.openai import OpenAIEndpoint

        return Runtime(OpenAIEndpoint(base_url, **options))

    return shared_client(("endpoint", base_url, repr(options)), make)


def shared_client(key: Hashable, make: Callable[[], Runtime]) -> RuntimeClient:
    """The client of that key: a new one if there is none, or if it was closed."""
    with _LOCK:
        client = _CLIENTS.get(key)
        if client is None or client.closed:
            client = _CLIENTS[key] = RuntimeClient(make)
        return client


def close_all() -> None:
    """Close every shared client. The next call of a chat model opens a new one."""
    with _LOCK:
        clients = list(_CLIENTS.values())
        _CLIENTS.clear()
    for client in clients:
        client.close()


call_before_exit(close_all)
