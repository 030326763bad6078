"""Executors that outlive the runtime or the set that they are lent to, and what is known there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest

from agentrt import Runtime
from agentrt.engines import ReplicaSet
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, Executor, ForwardingExecutor, Progress
from agentrt.executors.chat_api import Frontend
from agentrt.request import Call


class Lent(ForwardingExecutor):
    """Does not start or close what it lends, and counts the ``calls``. A dead one stays dead."""

    def __init__(self, inner: Executor) -> None:
        super().__init__(inner)
        self.calls = 0

    async def start(self, progress: Progress) -> None:
        if not self.alive():
            raise EngineDiedError("what was lent is dead")

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        self.calls += 1
        return self.inner.generate(call, stream=stream)

    async def close(self) -> None:
        """Its owner closes it."""


class WithFront(ForwardingExecutor):
    """Its runtime takes ``front``, another runtime's, and opens none itself."""

    def __init__(self, inner: Executor, front: Frontend) -> None:
        super().__init__(inner)
        self._front = front

    def own_frontend(self, names: Sequence[str]) -> Frontend:
        return self._front


@asynccontextmanager
async def lent_front(runtime: Runtime) -> AsyncIterator[Frontend]:
    """The front end of the runtime, for others that leave it open.

    A front end of a model that sees takes seconds to open.
    """
    front = await runtime.frontend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front, "close", AsyncMock())
        yield front


async def knows_what_they_hold(replicas: ReplicaSet) -> None:
    """The router's index is what each engine holds when it is asked."""
    dispatcher = replicas.routing.dispatcher
    for replica in replicas.replicas:
        found = await replica.executor.cached_blocks()
        assert found is not None
        note, _ = found
        assert note.stored
        assert dispatcher.cached_blocks.blocks(replica.view.index) == set(note.stored)
