"""Ports of loopback for servers that are started later, and perhaps more than once."""

from __future__ import annotations

import atexit
import socket


def reserved_port(host: str = "127.0.0.1") -> int:
    """A port that the kernel gives to nobody else while this process lives.

    Nobody listens there yet. A server can, if it sets ``SO_REUSEADDR``, as servers do.
    """
    taken = socket.socket()
    atexit.register(taken.close)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind((host, 0))
    return int(taken.getsockname()[1])
