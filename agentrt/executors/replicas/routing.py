"""Connects a set of replicas with its router: hashes prompts, and follows KV events.

Prompts are hashed only if the router uses cached blocks and the engines report them.
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
"""Maximum number of output tokens that routers expect of a call, whatever its limit is."""
_CHARACTERS_PER_TOKEN = 4
"""An estimate of the number of characters in a token, for prompts that are not tokenized yet."""


def prompt_tokens(call: Call) -> int:
    """Return the number of tokens of a call's prompt, estimated if it is not tokenized."""
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
        """Add a new replica, whose engine has not started yet."""
        replica.view = self.dispatcher.join(replica.name)
        self._streams[replica.name] = KVEventStream()

    def ready(self, replica: Replica) -> None:
        """Note that a replica's engine has started. Follow the engine's KV events if the router
        uses cached blocks and the engine reports them.
        """
        engine = replica.executor
        replica.view.slots = engine.info.slots or 0
        if self._reads_blocks_of(engine):
            self._forget(replica)  # late events of the previous engine may have arrived
            self.dispatcher.cached_blocks.clear(replica.view.index)
            engine.on_kv_events(partial(self._on_kv_events, replica, engine))
            self._request_snapshot(replica, engine)

    def lost(self, replica: Replica) -> None:
        """Forget the prefix cache of a replica whose engine died or will be replaced."""
        self._forget(replica)
        self._block_sizes.pop(replica.name, None)
        self.dispatcher.lost(replica.view)

    def _forget(self, replica: Replica) -> None:
        self._streams[replica.name].forget()
        snapshot = self._snapshots.pop(replica.name, None)
        if snapshot is not None:  # a dead engine does not answer
            snapshot.cancel()

    async def close(self) -> None:
        """Cancel requests for snapshots."""
        snapshots, self._snapshots = list(self._snapshots.values()), {}
        for task in snapshots:
            task.cancel()
        if snapshots:
            await asyncio.wait(snapshots)

    def _reads_blocks_of(self, engine: Executor) -> bool:
        return self.dispatcher.router.reads_blocks and engine.info.cached_blocks

    # -- calls -------------------------------------------------------------------------

    def send(self, call: Call, candidates: Sequence[Replica]) -> tuple[Replica, RoutedCall]:
        """Choose a replica for a call, and return it with the `RoutedCall`.

        The call counts as load of the replica until `ended` is called with the routed call.
        """
        identity, spec = call.identity, call.spec
        question = RouterCall(
            call.program_id,
            prompt_tokens(call),
            level_service_s=identity.level_service_s,
            kind=f"{identity.program_type}/{identity.node}",
            output_limit=min(spec.max_tokens, _OUTPUT_LIMIT),
            model=candidates[0].model,
        )
        hashing = next((r for r in candidates if r.name in self._block_sizes), None)
        if hashing is not None and spec.prompt_token_ids is not None:
            question.block_size = self._block_sizes[hashing.name]
            question.blocks = partial(hashing.executor.block_hashes, spec)
        routed = self.dispatcher.send(question, [replica.view for replica in candidates])
        return next(r for r in candidates if r.view is routed.replica), routed

    def ended(self, routed: RoutedCall | None, report: CallReport | None = None) -> None:
        """Note that a routed call has ended, with its engine's ``report`` if there is one. Without
        a ``routed`` call, this does nothing.

        Only the first `ended` of a routed call has an effect.
        """
        if routed is not None:
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
        """Ask for a snapshot of the prefix cache, unless a request is in progress."""
        pending = self._snapshots.get(replica.name)
        if pending is None or pending.done():
            with tracking.outside():
                task = asyncio.create_task(self._catch_up(replica, engine))
            self._snapshots[replica.name] = task

    async def _catch_up(self, replica: Replica, engine: Executor) -> None:
        while self._streams[replica.name].gap and replica.executor is engine:
            try:
                cached = await engine.cached_blocks()
            except AgentrtError:
                return  # the engine is dead, which the supervisor will report
            if cached is None or replica.executor is not engine:
                return
            batch, self._block_sizes[replica.name] = cached
            self._take(replica, batch)
