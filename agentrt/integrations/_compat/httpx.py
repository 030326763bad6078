"""Private parts of the HTTP clients httpx and httpx2 that are replaced or read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

VERSIONS = "httpx 0.28, httpx2 2.16"
_MODULES = ("httpx", "httpx2")  # OpenAI's SDK uses httpx2 since its version 3


def clients() -> Iterator[tuple[Any, Any]]:
    """Yield the synchronous and the asynchronous client class of each installed package."""
    for name in _MODULES:
        try:
            module = import_module(name)
        except ImportError:
            continue
        yield module.Client, module.AsyncClient


def replace_send(client: Any, send: Callable[..., Any]) -> Callable[[], None]:
    """Make all clients of a class send requests with ``send``. Return a function that undoes the
    replacement.
    """
    original = client.send
    client.send = functools.wraps(original)(send)
    return lambda: setattr(client, "send", original)


def when_closed(response: Any, then: Callable[[], None]) -> None:
    """Call ``then`` when a streamed response is closed or has been read to its end."""
    # Hook the stream and not the response, because every way of closing the response closes the
    # stream.
    name = "aclose" if hasattr(response.stream, "aclose") else "close"
    close = getattr(response.stream, name)

    @functools.wraps(close)
    def closing() -> Any:
        then()
        return close()

    setattr(response.stream, name, closing)
