"""Joins a set of replicas to its router: hashes prompts, and follows KV events.

Prompts are hashed only for a router that reads blocks, on engines that show them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from agentrt import tracking
from agentrt.errors import AgentrtError
from agentrt.executors.base import Executor
from agentrt.executors.replicas.replica import Replica
from agentrt.request import Call, CallReport
from agentrt.router import Dispatcher, RoutedCall, Router, RouterCall
from agentrt.router.kv_events import KVEventBatch, KVEventStream

_OUTPUT_LIMIT = 4096
"""More than so many tokens nobody expects of a call, whatever it may put out."""
_CHARACTERS_PER_TOKEN = 4
"""A guess, for whoever must weigh a prompt before an engine has counted it."""


def prompt_tokens(call: Call) -> int:
    """About how many tokens the call's prompt has."""
    spec = call.spec
    if spec.prompt_token_ids is not None:
        return len(spec.prompt_token_ids)
    texts = (str(message.get("content")) for message in spec.messages)
    return sum(map(len, texts)) // _CHARACTERS_PER_TOKEN


class Routing:
    """The dispatcher of a set of replicas, and the streams of their engines' KV events."""

    def __init__(self, router: Router, level_ends: Sequence[float] = ()) -> None:
        self.dispatcher = Dispatcher(router, level_ends)
        self._streams: dict[str, KVEventStream] = {}
        self._block_sizes: dict[str, int] = {}
        self._snapshots: dict[str, asyncio.Task[None]] = {}

    def join(self, replica: Replica) -> None:
        """A new replica, whose engine is not started yet."""
        replica.view = self.dispatcher.join(replica.name)
        self._streams[replica.name] = KVEventStream()

    def ready(self, replica: Replica) -> None:
        """The replica's engine has started: follow its KV events."""
        engine = replica.executor
        replica.view.slots = engine.info.slots or 0
        if self._reads_blocks_of(engine):
            self._forget(replica)  # late events of the engine before it may have come since
            self.dispatcher.cached_blocks.clear(replica.view.index)
            engine.on_kv_events(partial(self._on_kv_events, replica, engine))
            self._request_snapshot(replica, engine)

    def lost(self, replica: Replica) -> None:
        """The replica's engine died, and its prefix cache with it."""
        self._forget(replica)
        self._block_sizes.pop(replica.name, None)
        self.dispatcher.lost(replica.view)

    def _forget(self, replica: Replica) -> None:
        self._streams[replica.name].forget()
        snapshot = self._snapshots.pop(replica.name, None)
        if snapshot is not None:  # nobody may be there to answer
            snapshot.cancel()

    async def close(self) -> None:
        """Cancel what is asked of engines."""
        snapshots, self._snapshots = list(self._snapshots.values()), {}
        for task in snapshots:
            task.cancel()
        if snapshots:
            await asyncio.wait(snapshots)

    def _reads_blocks_of(self, engine: Executor) -> bool:
        return self.dispatcher.router.reads_blocks and engine.info.cached_blocks

    # -- calls -------------------------------------------------------------------------

    def send(self, call: Call, candidates: Sequence[Replica]) -> tuple[Replica, RoutedCall]:
        """Where a call goes; it counts there until the routed is `ended`."""
        identity, spec = call.identity, call.spec
        question = RouterCall(
            call.program_id,
            prompt_tokens(call),
            attained_s=identity.attained_s,
            kind=f"{identity.program_type}/{identity.node}",
            output_limit=min(spec.max_tokens, _OUTPUT_LIMIT),
        )
        teller = next((r for r in candidates if r.name in self._block_sizes), None)
        if teller is not None and spec.prompt_token_ids is not None:
            question.block_size = self._block_sizes[teller.name]
            question.blocks = partial(teller.executor.block_hashes, spec)
        routed = self.dispatcher.send(question, [replica.view for replica in candidates])
        return next(r for r in candidates if r.view is routed.replica), routed

    def ended(self, routed: RoutedCall, report: CallReport | None = None) -> None:
        """The call is over, the first time that this is said; its engine may have a ``report``."""
        self.dispatcher.ended(routed, report)

    # -- KV events ---------------------------------------------------------------------

    def _on_kv_events(self, replica: Replica, engine: Executor, batch: KVEventBatch) -> None:
        if replica.executor is not engine:
            return  # a late event of an engine that was replaced
        self._take(replica, batch)
        if self._streams[replica.name].gap:
            self._request_snapshot(replica, engine)

    def _take(self, replica: Replica, batch: KVEventBatch) -> None:
        for ready in self._streams[replica.name].take(batch):
            self.dispatcher.cache_changed(replica.view, ready)

    def _request_snapshot(self, replica: Replica, engine: Executor) -> None:
        """Ask for a snapshot of the prefix cache, unless one is on its way."""
        under_way = self._snapshots.get(replica.name)
        if under_way is None or under_way.done():
            with tracking.outside():
                task = asyncio.create_task(self._catch_up(replica, engine))
            self._snapshots[replica.name] = task

    async def _catch_up(self, replica: Replica, engine: Executor) -> None:
        while self._streams[replica.name].gap and replica.executor is engine:
            try:
                found = await engine.cached_blocks()
            except AgentrtError:
                return  # it is gone, and whoever watches it will say so
            if found is None or replica.executor is not engine:
                return
            batch, self._block_sizes[replica.name] = found
            self._take(replica, batch)
