"""Keeps out of a thread what a run that was rolled back there still writes.

A run that is stopped leaves writes behind: LangGraph hands those of cancelled tasks to the
checkpointer without waiting for them, and a node's thread cannot be stopped at all. Whatever
they are, they come too late.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
)

_REMEMBERED = 10_000
"""So many runs are kept out; from those of longer ago nothing comes any more."""


class Fence:
    """Knows which runs may write no more. For one event loop."""

    def __init__(self) -> None:
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._passing: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    async def close(self, run_id: str) -> None:
        """Keep the run out from now on, and wait until what it is writing is written."""
        self._closed[run_id] = None
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        for done in list(self._passing.get(run_id, ())):
            await done.wait()

    @contextmanager
    def passing(self, config: RunnableConfig) -> Iterator[bool]:
        """For the time of a write: whether what ``config`` is of may write."""
        run_id = str(config["configurable"].get("run_id"))
        done = asyncio.Event()
        self._passing[run_id].add(done)
        try:
            yield run_id not in self._closed
        finally:
            done.set()
            self._passing[run_id].remove(done)
            if not self._passing[run_id]:
                del self._passing[run_id]


class Fenced(BaseCheckpointSaver[str]):
    """A checkpointer behind a fence: its methods for threads call these. Goes before its class."""

    fence: Fence

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        with self.fence.passing(config) as may:
            if may:
                return await super().aput(config, checkpoint, metadata, new_versions)
        return config

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        with self.fence.passing(config) as may:
            if may:
                await super().aput_writes(config, writes, task_id, task_path)
