"""Keep idle streams alive, because proxies and clients cut silent connections.

When a stream has sent nothing for a time between half of the configured interval and the whole
interval, a comment is sent, or in Anthropic's API a ``ping`` event. `Middleware` does this for all
streams of server-sent events, in every API.
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
"""An interval (seconds) that turns off the pings of the library for server-sent events."""
_MESSAGES = "/v1/messages"
_ENDS = (b"\n\n", b"\r\n\r\n")
_NO_BODY: Message = {"body": b"\n\n", "more_body": True}


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


Later = Callable[[float, Callable[[], Any]], Timer]
"""Calls a function after a number of seconds, as `asyncio.AbstractEventLoop.call_later`."""


class KeepAlive:
    """The keep-alive of a stream at ``path``, which is sent with ``send``.

    For each message that is not an empty piece, the sender of the stream sets ``last`` to the
    message, and ``idle`` to 0. These are attributes and not a method, because they are set for
    every token. The stream is checked twice in ``interval_s`` seconds.
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
        """Stop the keep-alive. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        if not self.last.get("more_body", False):
            return  # the stream has ended
        self._timer = self._later(self._beat, self._look)
        self.idle += 1
        # Send only between two events, and only once in an interval.
        if self.idle >= 2 and bytes(self.last.get("body", b"")).endswith(_ENDS):
            self.idle = 0
            send_now(
                self._send({"type": "http.response.body", "body": self.ping, "more_body": True})
            )

    @property
    def ping(self) -> bytes:
        """The bytes that keep the stream alive in its API."""
        return ping_of(self._path)


def ping_of(path: str) -> bytes:
    """Return the bytes that keep a stream alive in the API at ``path``."""
    return PING if path == _MESSAGES else COMMENT


def send_now(sending: Awaitable[None]) -> bool:
    """Run ``sending``, which sends a message, without waiting, and return whether the message was
    sent.

    The message is not sent if earlier bytes are still waiting for the client to read them, or if
    the answer has ended.
    """
    steps = sending.__await__()
    try:
        next(steps)
    except StopIteration:
        return True
    except RuntimeError:  # the answer has ended in the meantime
        return False
    close = getattr(steps, "close", None)
    if close is not None:
        close()
    return False
