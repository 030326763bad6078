"""Joins a set of replicas to its router: prompts are counted and hashed, engines are heard.

What is done here beside the router's question is done only for a router that reads blocks, on
engines that show them; all others get estimates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError
from agentrt.executors.base import Executor
from agentrt.executors.replicas.replica import Replica, prompt_tokens
from agentrt.request import Call, CallReport, CallSpec
from agentrt.router import Dispatcher, Router, RouterCall, Trip
from agentrt.router.kv_events import KVEventBatch, KVEventStream

_OUTPUT_LIMIT = 4096
"""More than so many tokens nobody expects of a call, whatever it may put out."""


class Routing:
    """The dispatcher of a set of replicas, and the streams of what their engines hold."""

    def __init__(self, router: Router, level_ends: Sequence[float] = ()) -> None:
        self.dispatcher = Dispatcher(router, level_ends)
        self._streams: dict[str, KVEventStream] = {}
        self._sizes: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def join(self, replica: Replica) -> None:
        """A new replica, whose engine is not started yet."""
        replica.view = self.dispatcher.join(replica.name)
        self._streams[replica.name] = KVEventStream()

    def ready(self, replica: Replica) -> None:
        """The replica's engine has started: from now on it is heard."""
        engine = replica.executor
        replica.view.slots = engine.info.slots or 0
        if self._reads_blocks_of(engine):
            self._forget(replica)  # the last words of the one before it may have come since
            self.dispatcher.cached_blocks.clear(replica.view.index)
            engine.on_kv_events(partial(self._heard, replica, engine))
            self._ask(replica, engine)

    def lost(self, replica: Replica) -> None:
        """The replica's engine died, and what it held with it."""
        self._forget(replica)
        self._sizes.pop(replica.name, None)
        self.dispatcher.lost(replica.view)

    def _forget(self, replica: Replica) -> None:
        self._streams[replica.name].forget()
        asking = self._asking.pop(replica.name, None)
        if asking is not None:  # nobody may be there to answer
            asking.cancel()

    async def close(self) -> None:
        """Ask nobody any more."""
        asking, self._asking = list(self._asking.values()), {}
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _reads_blocks_of(self, engine: Executor) -> bool:
        return self.dispatcher.router.reads_blocks and engine.info.cached_blocks

    # -- calls -------------------------------------------------------------------------

    async def counted(self, call: Call, candidates: Sequence[Replica]) -> Call:
        """The call with its prompt as token ids, if the router will ask for its blocks.

        Done once, whichever engine it runs on, and however often; one that nobody could count
        is routed by estimates. Raises `CallRejectedError`.
        """
        engine = candidates[0].executor
        if call.spec.prompt_token_ids or not self._reads_blocks_of(engine):
            return call
        try:
            ids = tuple(await engine.prompt_ids(call.spec))
        except EngineDiedError:
            return call  # whoever runs calls there will say so
        return replace(
            call, spec=replace(call.spec, messages=None, prompt=None, prompt_token_ids=ids)
        )

    def send(self, call: Call, candidates: Sequence[Replica]) -> tuple[Replica, Trip]:
        """Where a `counted` call goes; it counts there until the trip is `ended`."""
        question = RouterCall(
            call.program_id,
            prompt_tokens(call),
            attained_s=call.identity.attained_s,
            kind=f"{call.identity.program_type}/{call.identity.node}",
            output_limit=min(call.spec.max_tokens, _OUTPUT_LIMIT),
        )
        teller = next((r for r in candidates if r.name in self._sizes), None)
        if teller is not None and call.spec.prompt_token_ids is not None:
            question.block_size = self._sizes[teller.name]
            question.blocks = partial(_hashed, teller.executor, call.spec)
        trip = self.dispatcher.send(question, [replica.view for replica in candidates])
        return next(r for r in candidates if r.view is trip.replica), trip

    @contextlib.contextmanager
    def counting(self, trip: Trip) -> Iterator[None]:
        """However the body ends, the trip is over then."""
        try:
            yield
        finally:
            self.dispatcher.ended(trip)

    def ended(self, trip: Trip, report: CallReport) -> None:
        """The call's engine gave its report."""
        self.dispatcher.ended(trip, report)

    # -- what engines tell -------------------------------------------------------------

    def _heard(self, replica: Replica, engine: Executor, note: KVEventBatch) -> None:
        if replica.executor is not engine:
            return  # the last words of one that was replaced
        stream = self._streams[replica.name]
        for ready in stream.take(note):
            self.dispatcher.cache_changed(replica.view, ready)
        if stream.gap:
            self._ask(replica, engine)

    def _ask(self, replica: Replica, engine: Executor) -> None:
        """Ask for a snapshot, unless one is on its way."""
        under_way = self._asking.get(replica.name)
        if under_way is None or under_way.done():
            with tracking.outside():
                task = asyncio.create_task(self._catch_up(replica, engine), name="agentrt/held")
            self._asking[replica.name] = task

    async def _catch_up(self, replica: Replica, engine: Executor) -> None:
        stream = self._streams[replica.name]
        while stream.gap and replica.executor is engine:
            try:
                found = await engine.cached_blocks()
            except AgentrtError:
                return  # it is gone, and whoever watches it will say so
            if found is None or replica.executor is not engine:
                return
            note, self._sizes[replica.name] = found
            for ready in stream.take(note):
                self.dispatcher.cache_changed(replica.view, ready)


def _hashed(engine: Executor, spec: CallSpec) -> Sequence[int]:
    return engine.block_hashes(spec.prompt_token_ids or (), spec.cache_salt)
