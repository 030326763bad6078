"""What the replicas' policies learn is shared: a program's size does not depend on who served it.

The process table over all engines has an ended program's totals. The replicas that had calls of
it are told with its end, all others here; one that starts again is taught what another knows.
So each knows the sizes of all programs; what a turn or a node says of them it learns from its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any

from agentrt import tracking
from agentrt.errors import AgentrtError
from agentrt.executors.base import Progress
from agentrt.executors.learned import SAVE_EVERY, Learned, SharesLearned, read, write
from agentrt.executors.replicas.replica import UP, Replica
from agentrt.scheduler.totals import ProgramTotals

_ANSWERS_S = 2.0
"""An engine that takes longer to answer is not waited for."""


class Learning:
    """What ``replicas`` have learned: known to each, and kept in the file at ``path``, if any.

    ``notice`` is told of a file that cannot be written.
    """

    def __init__(self, replicas: Sequence[Replica], path: Path | None, notice: Progress) -> None:
        self._replicas = replicas
        self._path = path
        self._notice = notice
        self._known: Learned | None = None
        self._ends = 0  # since it was known
        self._one_at_a_time = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Before the replicas start. Raises `ConfigError` for a file that is no history."""
        if self._path is not None:
            self._known = await asyncio.to_thread(read, self._path)

    def ready(self, replica: Replica) -> None:
        """The replica's engine has started: it is to know what the others do, or the file."""
        self._begin(self._teach(replica))

    def ended(self, totals: ProgramTotals, told: Collection[Replica]) -> None:
        """A program ended; all but those who were ``told`` learn of it from here."""
        if totals.service_s <= 0.0:
            return
        for replica in self._replicas:
            executor = _sharer(replica)
            if executor is not None and replica not in told:
                executor.learn(totals)
        self._ends += 1
        if self._ends % SAVE_EVERY == 0:
            self._begin(self._keep())

    async def settled(self) -> None:
        """Wait until whoever started has been taught, and what is due is written."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Keep what was learned, while there is an engine to ask."""
        await self.settled()
        if self._ends:
            await self._keep()

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        with tracking.outside():
            task = asyncio.create_task(work, name="agentrt/learning")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _teach(self, replica: Replica) -> None:
        if self._ends:
            await self._keep(besides=replica)
        known, executor = self._known, _sharer(replica)
        if known is not None and executor is not None:
            with contextlib.suppress(AgentrtError, TimeoutError):
                async with asyncio.timeout(_ANSWERS_S):
                    await replica.lifeline.hold(lambda: executor.teach(known))

    async def _keep(self, besides: Replica | None = None) -> None:
        """Know what the first replica that answers has learned, and write it down."""
        async with self._one_at_a_time:
            ends = self._ends
            learned = await self._ask(besides)
            if learned is None:
                return
            self._known, self._ends = learned, self._ends - ends
            if self._path is None:
                return
            try:
                await asyncio.to_thread(write, self._path, learned)
            except OSError as error:
                self._notice(f"what was learned of programs is not saved: {error}")

    async def _ask(self, besides: Replica | None) -> Learned | None:
        for replica in self._replicas:
            executor = _sharer(replica)
            if executor is None or replica is besides:
                continue
            with contextlib.suppress(AgentrtError, TimeoutError):
                async with asyncio.timeout(_ANSWERS_S):
                    learned = await replica.lifeline.hold(executor.learned)
                if learned is not None:
                    return learned
        return None


def _sharer(replica: Replica) -> SharesLearned | None:
    """The replica's engine, if it lives and can share what it learned."""
    executor = replica.executor
    return executor if replica.state in UP and isinstance(executor, SharesLearned) else None
