"""Sees every call begin on an engine and every reply delivered, and says what went wrong."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

from agentrt.executors.base import Chunk, Executor, ForwardingExecutor
from agentrt.request import Call


class Witness:
    """What happened to each call, by its id.

    ``delivered`` counts the replies that reached the program, ``begun`` the engines that the
    call was given to. ``faults`` are calls that ran after they had been delivered, and streams
    whose pieces are not their reply.
    """

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.faults: list[str] = []

    def engine(self, executor: Executor) -> Executor:
        """One engine of several, watched."""
        return _Watched(executor, self._begins, None)

    def front(self, executor: Executor) -> Executor:
        """What programs call, watched."""
        return _Watched(executor, None, self._gives)

    def _begins(self, call: Call) -> None:
        self.begun[call.call_id] += 1
        if self.delivered[call.call_id]:
            self.faults.append(f"{call.call_id} ran again after it was delivered")

    def _gives(self, call: Call, streamed: str, chunk: Chunk) -> None:
        if chunk.reply is None:
            return
        self.delivered[call.call_id] += 1
        if self.delivered[call.call_id] > 1:
            self.faults.append(f"{call.call_id} was delivered twice")
        if streamed != chunk.reply.text and not call.spec.tools:
            self.faults.append(f"{call.call_id} streamed other text than its reply has")


class _Watched(ForwardingExecutor):
    """An executor, and who is told of its calls."""

    def __init__(self, inner: Executor, begins: Any, gives: Any) -> None:
        super().__init__(inner)
        self._begins = begins
        self._gives = gives

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self._begins is not None:
            self._begins(call)
        streamed = ""
        async with contextlib.aclosing(self.inner.generate(call, stream=stream)) as chunks:
            async for chunk in chunks:
                streamed += chunk.text
                if self._gives is not None:
                    self._gives(call, streamed, chunk)
                yield chunk
