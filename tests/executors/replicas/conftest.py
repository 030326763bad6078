"""Fixtures of replica sets that close themselves, and leave nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agentrt.engines import ReplicaSet
from agentrt.router import make_router
from tests.executors.replicas.cast import AT_ONCE, Cast

Open = Callable[..., Awaitable[ReplicaSet]]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    sets: list[ReplicaSet] = []

    async def make(cast: Cast, router: str = "least-used", **options: Any) -> ReplicaSet:
        settings: dict[str, Any] = {"backoff": AT_ONCE, **options}
        one = ReplicaSet(cast, len(cast.parts), make_router(router), **settings)
        await one.start(lambda message: None)
        sets.append(one)
        return one

    yield make
    for one in sets:
        await one.close()
        assert not one._supervisor._tasks
        assert not one._where
