"""Failed tries are remembered for a bounded time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping
from typing import Any

from agentrt.serving.frontend.retries import REMEMBERED_S, RETRY, Tries


class Name(str):
    """A tenant's name, of which a test can tell whether it is still in memory."""

    __slots__ = ("__weakref__",)


class Exchange:
    """A request in flight that notes when a later try cancels it."""

    chat: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.is_superseded = False

    async def supersede(self) -> None:
        self.is_superseded = True


async def begin(tries: Tries, tenant: str, count: int, now: float) -> tuple[Exchange, Any]:
    scope = {"path": "/v1/chat/completions", "state": {"headers": {RETRY: b"%d" % count}}}
    exchange = Exchange()
    return exchange, await tries.begin(exchange, scope, tenant, b"digest", now)


async def test_failures_that_no_retry_follows_are_forgotten() -> None:
    """Clients that never retry count their tries, too."""
    tries, names = Tries(), [Name(f"tenant {number}") for number in range(3)]
    known = weakref.ref(names[0])
    for number, name in enumerate(names):
        now = 2 * number * REMEMBERED_S
        _, own = await begin(tries, name, 0, now)
        tries.end(own, now, failed=True)
    del names, name, own
    gc.collect()
    assert known() is None


async def test_a_failure_that_a_retry_has_followed_does_not_expire_a_later_failure() -> None:
    """1. A try fails, and its retry follows. 2. The same request fails again. 3. The first failure
    is too old. 4. The retry of the second failure cancels no other request that is in flight.
    """
    tries = Tries()
    _, own = await begin(tries, "a", 0, 0.0)
    tries.end(own, 0.0, failed=True)
    _, retry = await begin(tries, "a", 1, 1.0)
    tries.end(retry, 2.0, failed=False)
    _, own = await begin(tries, "a", 0, REMEMBERED_S - 1.0)
    tries.end(own, REMEMBERED_S - 1.0, failed=True)
    other, _ = await begin(tries, "a", 0, REMEMBERED_S)
    await begin(tries, "a", 1, REMEMBERED_S + 1.0)
    assert not other.is_superseded
