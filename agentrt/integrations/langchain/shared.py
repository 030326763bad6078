"""The clients that all chat models of a process share: one for each engine or endpoint."""

from __future__ import annotations

import os
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
# A forked process must not get the lock while another thread, which it does not have, holds it.
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)


@contextmanager
def lend(client: RuntimeClient) -> Iterator[None]:
    """During the ``with`` block, let the chat models of this process that have no runtime and no
    endpoint of their own use ``client``.
    """
    with _LOCK:
        _LENT.append(client)
    try:
        yield
    finally:
        with _LOCK:
            _LENT.remove(client)


def engine_client(model: str | None) -> RuntimeClient:
    """Return the client of this process's embedded engine for ``model``; None means the default
    model.

    While a client is lent (`lend`), the lent client is returned instead. It may serve another
    model, and then rejects calls that name ``model``.
    """
    with _LOCK:
        if _LENT:
            return _LENT[-1]

    def make() -> Runtime:
        from agentrt.engines import EngineOptions, VLLMEngine

        return Runtime(VLLMEngine(EngineOptions(model=model)))

    return shared_client(("engine", model), make)


def endpoint_client(base_url: str, **options: Any) -> RuntimeClient:
    """Return the client of an OpenAI-compatible endpoint. ``options`` are the options of
    `OpenAIEndpoint`.
    """

    def make() -> Runtime:
        from agentrt.executors.openai import OpenAIEndpoint

        return Runtime(OpenAIEndpoint(base_url, **options))

    return shared_client(("endpoint", base_url, repr(options)), make)


def shared_client(key: Hashable, make: Callable[[], Runtime]) -> RuntimeClient:
    """Return the client of a key. Make a new client with ``make`` if the key has no client, or if
    its client was closed.
    """
    with _LOCK:
        client = _CLIENTS.get(key)
        if client is None or client.closed:
            client = _CLIENTS[key] = RuntimeClient(make)
        return client


def close_all() -> None:
    """Close every shared client. The next call of a chat model opens a new client."""
    with _LOCK:
        clients = list(_CLIENTS.values())
        _CLIENTS.clear()
    for client in clients:
        client.close()


call_before_exit(close_all)
