"""What is replaced and read in the HTTP clients httpx and httpx2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

VERSIONS = "httpx 0.28, httpx2 2.16"
_MODULES = ("httpx", "httpx2")  # OpenAI's SDK moved to the second with its version 3


def clients() -> Iterator[tuple[Any, Any]]:
    """The synchronous and the asynchronous client of each that is installed."""
    for name in _MODULES:
        try:
            module = import_module(name)
        except ImportError:
            continue
        yield module.Client, module.AsyncClient


def replace_send(client: Any, send: Callable[..., Any]) -> Callable[[], None]:
    """Have all clients of that class send requests with ``send``. Returns what undoes it."""
    original = client.send
    client.send = functools.wraps(original)(send)
    return lambda: setattr(client, "send", original)


def when_closed(response: Any, then: Callable[[], None]) -> None:
    """Call ``then`` before the response to a streamed request is read to its end, or closed."""
    # On the stream, not the response: whatever closes the response ends there.
    name = "aclose" if hasattr(response.stream, "aclose") else "close"
    close = getattr(response.stream, name)

    @functools.wraps(close)
    def closing() -> Any:
        then()
        return close()

    setattr(response.stream, name, closing)
