"""A stream that waits says that it lives: proxies and clients cut connections that are silent.

A comment, or a ``ping`` event in Anthropic's API, is sent when a stream has been silent for as
long as the server's option says, from its first header on. `Middleware` does this for every answer
that is a stream of events, whichever API it belongs to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from starlette.types import Message, Send

STREAM = b"text/event-stream"
COMMENT = b": waiting\n\n"
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
NEVER_S = 7 * 24 * 3600
"""The interval of the pings that a library would send by itself beside these."""
_MESSAGES = "/v1/messages"
_ENDS = (b"\n\n", b"\r\n\r\n")
_NO_BODY: Message = {"body": b"\n\n", "more_body": True}


class Timer(Protocol):
    """A call that can be called off."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], Any]], Timer]
"""Calls a function after so many seconds, as `asyncio.AbstractEventLoop.call_later`."""


class KeepAlive:
    """Keeps the stream at ``path`` alive, which goes out by ``send``.

    Whoever sends a message of the stream sets ``last`` to it and ``idle`` to 0: these are set for
    every token, and so cost no call. The stream is looked at twice in ``interval_s`` seconds.
    """

    __slots__ = ("_beat", "_later", "_path", "_send", "_timer", "idle", "last")

    def __init__(
        self, send: Send, path: str, interval_s: float, later: Later | None = None
    ) -> None:
        self._send, self._path = send, path
        self._beat = interval_s / 2
        self._later: Later = asyncio.get_running_loop().call_later if later is None else later
        self.idle = 0
        self.last = _NO_BODY
        self._timer = self._later(self._beat, self._look)

    def stop(self) -> None:
        """Send nothing more. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        if not self.last.get("more_body", False):
            return  # the stream has ended
        self._timer = self._later(self._beat, self._look)
        self.idle += 1
        # Between two events only, and once in an interval.
        if self.idle >= 2 and bytes(self.last.get("body", b"")).endswith(_ENDS):
            self.idle = 0
            send_now(
                self._send({"type": "http.response.body", "body": self.ping, "more_body": True})
            )

    @property
    def ping(self) -> bytes:
        """What the API of the stream takes for a sign of life."""
        return ping_of(self._path)


def ping_of(path: str) -> bytes:
    """The sign of life in the API that ``path`` belongs to."""
    return PING if path == _MESSAGES else COMMENT


def send_now(sending: Awaitable[None]) -> bool:
    """Send without waiting, and return whether it was sent.

    It is not where bytes are on their way already, which the client does not read.
    """
    steps = sending.__await__()
    try:
        next(steps)
    except StopIteration:
        return True
    except RuntimeError:  # the answer has ended meanwhile
        return False
    close = getattr(steps, "close", None)
    if close is not None:
        close()
    return False
