"""Parts of a request that this server cannot use. The server leaves these parts out and answers the
other parts; a header of the answer names the types of the parts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from starlette.types import Message, Send

HEADER = b"x-agentrt-left-out"
MOST_TYPES = 32
"""Maximum number of types in the header, and in a line of the log."""
_MOST_KNOWN = 1024
"""Maximum number of pairs of path and type for which the log has a warning. Later types get no
warning.
"""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:/-]")
_LONGEST_TYPE = 64
_LOG = logging.getLogger(__name__)
_logged: set[tuple[str, str]] = set()


class LeftOut:
    """The types of the parts that were left out of one request, in the order in which they
    occur.
    """

    def __init__(self) -> None:
        self._types: dict[str, None] = {}

    def add(self, kind: object) -> None:
        """Note that a part of the type ``kind`` was left out."""
        self._types[_UNSAFE.sub("?", str(kind))[:_LONGEST_TYPE] or "?"] = None

    def __bool__(self) -> bool:
        return bool(self._types)

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(self._types)

    def noting(self, path: str, send: Send) -> Send:
        """Log the types, and return ``send`` wrapped so that the answer has a header with the
        types.

        Returns ``send`` itself if nothing was left out.
        """
        if not self._types:
            return send
        log_left_out(path, self._types)
        header = left_out_header(self._types)

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        return send_noted


def left_out_header(types: Iterable[str]) -> tuple[bytes, bytes]:
    """Return the answer's header that names the types of the parts that were left out."""
    return HEADER, ", ".join(list(types)[:MOST_TYPES]).encode("ascii", "replace")


def log_left_out(path: str, types: Iterable[str]) -> None:
    """Log the types of the parts that were left out of a request to ``path``.

    Only the first line about a type is a warning, because clients send parts of the same types in
    each request.
    """
    named = list(types)[:MOST_TYPES]
    new = [kind for kind in named if (path, kind) not in _logged]
    if new and len(_logged) < _MOST_KNOWN:
        _logged.update((path, kind) for kind in new)
        _LOG.warning(
            "%s: parts of a request were left out, because this server cannot use their types: %s; "
            "the other parts were answered",
            path,
            ", ".join(new),
        )
    else:
        _LOG.debug("%s: types of parts that were left out of a request: %s", path, ", ".join(named))
