"""Requests that come again: which earlier try of the same request to end before the later begins.

A client whose connection was cut sends its request again. The server sees most cuts, and aborts the
call; but a proxy may keep its own connection open, and the call would run on beside the new one.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Scope

from agentrt.serving.programs.identity import CLAIMED

KEY = b"idempotency-key"
RETRY = b"x-stainless-retry-count"
"""The header in which the SDKs of OpenAI and Anthropic, and what is built on them, count tries."""
REMEMBERED_S = 120.0
"""How long a failed try is known to be the one that a retry follows. SDKs wait 60 s at most."""
_MOST_COUNT = 100

Client = tuple[Any, ...]
"""Tenant, path, and what tells one client of a tenant from another."""


class Superseding(Protocol):
    """A request under way that a later try may end."""

    chat: Mapping[str, Any]

    async def supersede(self) -> None:
        """End it, and wait until it is over."""


@dataclass(slots=True)
class Try:
    """A try of a request: its ``client``, the number ``count`` of the try, and the ``digest`` of
    its conversation. ``count`` is None where the client counts no tries.
    """

    exchange: Superseding
    client: Client
    key: bytes | None
    count: int | None
    digest: bytes


class Tries:
    """The requests under way that may come again, and those that failed a short time ago.

    With an ``Idempotency-Key``, a later request with the same key ends the earlier one. Without
    one, the n-th retry ends the try before it: a request under way of the same client, with the
    same body and the number n - 1. It ends none if such a try has failed, as where the server saw
    that its connection was cut, and none where several requests fit: an equal request that runs
    beside may be meant.
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[Client, bytes], Try] = {}
        self._counted: defaultdict[Client, list[Try]] = defaultdict(list)
        self._failed: Counter[tuple[Client, int, bytes]] = Counter()
        self._ages: deque[tuple[float, tuple[Client, int, bytes]]] = deque()

    async def begin(
        self, exchange: Superseding, scope: Scope, tenant: str, digest: bytes, now: float
    ) -> Try | None:
        """Begin a try, once earlier ones of the same request have ended. None if the client says
        nothing by which it could come again.
        """
        headers: Mapping[bytes, bytes] = scope["state"]["headers"]
        key, count = headers.get(KEY), _count(headers.get(RETRY))
        if not key and count is None:
            return None
        path = scope["path"]
        if key:
            own = Try(exchange, (tenant, path), key, None, digest)
            while (earlier := self._keys.get((own.client, key))) is not None:
                await earlier.exchange.supersede()
            self._keys[own.client, key] = own
            return own
        assert count is not None
        host = (scope.get("client") or ("",))[0]
        claims = tuple(sorted((name, headers[name]) for name in CLAIMED & headers.keys()))
        client = (tenant, path, host, headers.get(b"user-agent"), claims)
        own = Try(exchange, client, None, count, digest)
        if count and not self._follows_failed(own, now):
            like = [
                one
                for one in self._counted.get(client, ())
                if one.count == count - 1 and one.exchange.chat == exchange.chat
            ]
            if len(like) == 1:
                await like[0].exchange.supersede()
        self._counted[client].append(own)
        return own

    def end(self, own: Try, now: float, *, failed: bool) -> None:
        """End a try. If it ``failed``, its client may come again."""
        if own.key is not None:
            del self._keys[own.client, own.key]
            return
        others = self._counted[own.client]
        others.remove(own)
        if not others:
            del self._counted[own.client]
        if failed and own.count is not None:
            told = (own.client, own.count, own.digest)
            self._failed[told] += 1
            self._ages.append((now, told))

    def _follows_failed(self, own: Try, now: float) -> bool:
        """Whether the try before this one is known to have failed."""
        while self._ages and self._ages[0][0] < now - REMEMBERED_S:
            self._forget(self._ages.popleft()[1])
        assert own.count is not None
        before = (own.client, own.count - 1, own.digest)
        return self._forget(before)

    def _forget(self, told: tuple[Client, int, bytes]) -> bool:
        if not self._failed[told]:
            del self._failed[told]
            return False
        self._failed[told] -= 1
        if not self._failed[told]:
            del self._failed[told]
        return True


def _count(value: bytes | None) -> int | None:
    """The number of a try. None if it is not a small number."""
    if value is None or not value.isdigit() or len(value) > 3:
        return None
    count = int(value)
    return count if count <= _MOST_COUNT else None
