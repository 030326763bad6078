"""Retries: which earlier try of a request is cancelled when the client sends the request again.

A client whose connection was cut sends its request again. The server notices most cuts, and aborts
the call; but a proxy may keep its own connection open, and the call would continue beside the call
of the new request.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Scope

from agentrt.serving.programs.identity import CLAIMED

KEY = b"idempotency-key"
RETRY = b"x-stainless-retry-count"
"""The header in which clients built on the SDKs of OpenAI and Anthropic count their retries."""
REMEMBERED_S = 120.0
"""Seconds for which a failed try is remembered. SDKs wait at most 60 s before they retry."""
SEQUENTIAL = re.compile(rb"(codex|opencode)", re.IGNORECASE)
"""The ``User-Agent`` of agents that do not count their retries, but make the calls of a session one
at a time: a call that is the same as the call in flight is a retry.
"""
SESSIONS = frozenset({b"session-id", b"session_id", b"x-session-affinity"})
"""The headers in which agents that do not count their retries name their session."""
_MOST_COUNT = 100

Client = tuple[Any, ...]
"""A key that identifies a client: the tenant and the path, and for requests without an
``Idempotency-Key`` also the headers and the address in which clients of one tenant differ.
"""
_FailedTry = tuple[Client, int, bytes]
"""The client, the number and the digest of a try that has failed."""


class Superseding(Protocol):
    """A request in flight that a later try may cancel."""

    chat: Mapping[str, Any]

    async def supersede(self) -> None:
        """Cancel the request, and wait until it has ended."""


@dataclass(slots=True, eq=False)
class Try:
    """A try of a request: its ``client``, its ``key`` if it has one, its number ``count``, and the
    ``digest`` of its conversation. ``count`` is None if the client does not count its tries.
    """

    exchange: Superseding
    client: Client
    key: bytes | None
    count: int | None
    digest: bytes


class Tries:
    """The requests in flight that may be retried, and the requests that failed recently.

    With an ``Idempotency-Key``, a later request with the same key cancels the earlier request.
    Without a key, the n-th retry cancels the previous try: a request in flight of the same client,
    with the same body and the number n - 1.

    A retry without a key cancels nothing if the previous try has failed already, for example
    because the server saw that the connection was cut. The retry also cancels nothing if several
    requests match, because equal requests may be meant to run at the same time.

    Codex and OpenCode do not count their retries. If such an agent sends the same request again in
    the same session, the request in flight is cancelled.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[Client, bytes], Try] = {}
        self._without_key: defaultdict[Client, list[Try]] = defaultdict(list)
        self._failed: dict[_FailedTry, deque[float]] = {}
        """The times of the failures that are remembered and that no retry has followed yet."""
        self._ages: deque[tuple[float, _FailedTry]] = deque()

    async def begin(
        self, exchange: Superseding, scope: Scope, tenant: str, digest: bytes, now: float
    ) -> Try | None:
        """Begin a try, after earlier tries that it replaces were cancelled and have ended. Return
        None for a request with which no later request can be matched.
        """
        headers: Mapping[bytes, bytes] = scope["state"]["headers"]
        key, count = headers.get(KEY), _count(headers.get(RETRY))
        if not key and count is None and not _is_sequential(headers):
            return None
        path = scope["path"]
        if key:
            own = Try(exchange, (tenant, path), key, None, digest)
            while (earlier := self._keys.get((own.client, key))) is not None:
                await earlier.exchange.supersede()
            self._keys[own.client, key] = own
            return own
        host = (scope.get("client") or ("",))[0]
        claims = tuple(sorted((name, headers[name]) for name in CLAIMED & headers.keys()))
        client = (tenant, path, host, headers.get(b"user-agent"), claims)
        own = Try(exchange, client, None, count, digest)
        earlier = self._retried(own, now)
        if earlier is not None:
            await earlier.exchange.supersede()
        self._without_key[client].append(own)
        return own

    def _retried(self, own: Try, now: float) -> Try | None:
        """Return the try in flight that the try ``own``, which has no ``Idempotency-Key``, repeats;
        None if there is not exactly one such try.
        """
        if own.count == 0 or (own.count is not None and self._follows_failed(own, now)):
            return None
        before = None if own.count is None else own.count - 1
        candidates = [
            earlier
            for earlier in self._without_key.get(own.client, ())
            if earlier.count == before and earlier.exchange.chat == own.exchange.chat
        ]
        return candidates[0] if len(candidates) == 1 else None

    def end(self, own: Try, now: float, *, failed: bool) -> None:
        """Remove a try that has ended. If it ``failed``, and the client counts its tries, the
        failure is remembered for the next try.
        """
        if own.key is not None:
            del self._keys[own.client, own.key]
            return
        others = self._without_key[own.client]
        others.remove(own)
        if not others:
            del self._without_key[own.client]
        self._forget_old(now)
        if failed and own.count is not None:
            try_key = (own.client, own.count, own.digest)
            self._failed.setdefault(try_key, deque()).append(now)
            self._ages.append((now, try_key))

    def _follows_failed(self, own: Try, now: float) -> bool:
        """Return whether the try before this one is known to have failed."""
        self._forget_old(now)
        assert own.count is not None
        before = (own.client, own.count - 1, own.digest)
        if before not in self._failed:
            return False
        self._forget(before)
        return True

    def _forget_old(self, now: float) -> None:
        while self._ages and self._ages[0][0] < now - REMEMBERED_S:
            at, try_key = self._ages.popleft()
            if self._failed.get(try_key, (math.inf,))[0] <= at:  # no retry has followed it
                self._forget(try_key)

    def _forget(self, try_key: _FailedTry) -> None:
        """Forget the oldest failure of a try."""
        times = self._failed[try_key]
        times.popleft()
        if not times:
            del self._failed[try_key]


def _is_sequential(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether the client makes the calls of its session one at a time."""
    agent = headers.get(b"user-agent", b"")
    return SEQUENTIAL.match(agent) is not None and not SESSIONS.isdisjoint(headers)


def _count(value: bytes | None) -> int | None:
    """Return the number of a try; None if the header's value is not a small number."""
    if value is None or not value.isdigit() or len(value) > 3:
        return None
    count = int(value)
    return count if count <= _MOST_COUNT else None
