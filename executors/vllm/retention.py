"""Keeps programs' prefixes in the cache while they are away, and counts what was lost.

The `Retainer` stands between the scheduler's events and the free blocks. With retention
``lru`` it only counts: nothing of vLLM's is replaced. It asks no clock; the scheduler
gives the time with each event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrt.errors import ConfigError
from agentrt.executors.identity import NESTED
from agentrt.executors.vllm._compat.offloading import keys_of, policy_of
from agentrt.executors.vllm._compat.pool import (
    all_blocks,
    cached_blocks,
    find_cached,
    free_queue,
    new_blocks,
)
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, hash_block_size
from agentrt.executors.vllm._compat.requests import Request, extra_args
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler
from agentrt.executors.vllm.free_queue import ProtectedFreeQueue
from agentrt.executors.vllm.host_tier import ProgramCachePolicy
from agentrt.executors.vllm.prefix_history import PrefixHistory, common
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.retention import (
    Context,
    Contexts,
    Ranking,
    Retention,
    key_of,
    make_retention,
)
from agentrt.scheduler.retention.gaps import Gaps
from agentrt.scheduler.table import ProgramRow

_HEADROOM = 0.1
"""Share of the cache that new calls leave to what the programs that are there will add."""
_CALLS = 2048
"""Calls whose blocks are remembered, in case that their programs drop them."""


class Retainer:
    """The contexts of one engine's programs, and the queue that protects their blocks.

    ``queue`` is None with retention ``lru``, and where prefixes are not cached at all;
    ``gaps`` is where nothing is learned. A ``policy`` that is given decides in place of the one
    that the settings name.
    """

    def __init__(
        self,
        scheduler: AsyncScheduler,
        config: SchedulerConfig,
        policy: Retention | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._block_size = hash_block_size(scheduler)
        self.now = 0.0
        self._history = PrefixHistory()
        self._calls: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()
        self.queue: ProtectedFreeQueue | None = None
        self.host: ProgramCachePolicy | None = None
        self.gaps: Gaps | None = None
        policy = policy or make_retention(config)
        if policy is None or not caches_prefixes(scheduler):
            return
        self.gaps = policy.gaps
        self.contexts = Contexts(policy)
        self.queue = ProtectedFreeQueue.adopt(
            free_queue(scheduler),
            all_blocks(scheduler),
            Ranking(self.contexts.rank),
            policy,
        )
        host = policy_of(scheduler)
        if isinstance(host, ProgramCachePolicy):
            self.host = host
            host.bind(self.contexts)

    @property
    def protected(self) -> int:
        """Free blocks that are given away last."""
        return 0 if self.queue is None else self.queue.protected

    def close(self) -> None:
        """Give vLLM its queue back."""
        if self.queue is not None:
            self.queue.leave()
            self.queue = None
        if self.host is not None:
            self.host.bind(None)
            self.host = None

    def _changed(self, context: Context) -> None:
        """A context stands elsewhere, in the engine's memory and in the host's."""
        if self.queue is not None:
            self.queue.changed(context)
        if self.host is not None:
            self.host.changed(context)

    def at(self, now: float) -> None:
        """It is ``now`` (seconds, the scheduler's clock)."""
        self.now = now
        if self.queue is not None:
            self.queue.now = now
        if self.host is not None:
            self.host.now = now

    # -- calls -------------------------------------------------------------------------

    def call_arrived(self, row: ProgramRow, request: Request, now: float) -> Context | None:
        """A program's call came; its context, to be given back when the call has ended."""
        if self.queue is None:
            return None
        self.at(now)
        context = self.contexts.call_arrived(row, now)
        if self.host is not None:
            self.host.call_arrived(request.request_id, context)
        self._changed(context)
        return context

    def known_tokens(self, row: ProgramRow, request: Request) -> int:
        """Leading tokens of a call's prompt that its program's calls had computed before.

        Of a prompt that is known in whole the last token is computed again in any case.
        """
        most = (request.num_prompt_tokens - 1) // self._block_size
        known = self._history.known(key_of(row), request.block_hashes)
        return min(known, most) * self._block_size

    def beside_tokens(self, request: Request, others: Iterable[Request]) -> int:
        """Leading tokens of a call's prompt that one of the ``others``, in the engine, has too."""
        hashes = request.block_hashes
        counts = (common(hashes, other.block_hashes) for other in others)
        return max(counts, default=0) * self._block_size

    def blocks_freed(self, request: Request, context: Context | None) -> None:
        """A request's blocks are about to be freed, as it ends or is preempted.

        One without a program protects nothing; what it shares with one is shared.
        """
        if self.queue is None:
            return
        type = "" if context is None else context.type
        if context is not None:
            context.tokens = max(context.tokens, request.num_computed_tokens)
        blocks = cached_blocks(self._scheduler, request)
        self.queue.mark(blocks, context, lambda: self.contexts.shared(type))

    def call_ended(
        self,
        row: ProgramRow | None,
        request: Request,
        context: Context | None,
        now: float,
    ) -> None:
        """A call ended, of a program unless ``row`` is None; its blocks are freed next."""
        if row is not None:
            self._note(row, request)
        self.at(now)
        self.blocks_freed(request, context)
        if context is not None and self.queue is not None:
            self.contexts.call_ended(context, now)
            self._remember(request)
            self._changed(context)

    def _remember(self, request: Request) -> None:
        """Keep a call's hashes for when its program drops what it had computed."""
        call_id = (extra_args(request).get(NESTED) or {}).get("call_id")
        if call_id:
            computed = request.num_computed_tokens // self._block_size
            self._calls[call_id] = tuple(request.block_hashes[:computed])
            if len(self._calls) > _CALLS:
                self._calls.popitem(last=False)

    def _note(self, row: ProgramRow, request: Request) -> None:
        """Remember what a call had computed, for its program's next."""
        computed = min(request.num_computed_tokens // self._block_size, len(request.block_hashes))
        self._history.note(key_of(row), request.block_hashes, computed)

    def too_costly(self, request: Request) -> bool:
        """Whether a waiting call should rather wait on than evict others.

        One that finds at least half of its prompt never should: what it adds is little, and
        its own context is at stake.
        """
        if self.queue is None:
            return False
        room = self.queue.unprotected - int(_HEADROOM * all_blocks(self._scheduler))
        needed, found = new_blocks(self._scheduler, request, room)
        if needed <= room or found >= needed:
            return False
        return self.queue.worth_waiting_for()

    # -- programs ----------------------------------------------------------------------

    def program_ended(self, row: ProgramRow, now: float) -> None:
        """A program ended, was cancelled, or was not heard of any more."""
        if row.session is None:
            self._history.forget(key_of(row))
        if self.queue is None:
            return
        self.at(now)
        for context in self.contexts.program_ended(row.program_id, now):
            self._changed(context)

    def members_changed(self, changed: Mapping[str, bool]) -> None:
        """These programs came into the working set, or left it: their blocks go sooner then."""
        if self.queue is None:
            return
        for program_id, member in changed.items():
            if (context := self.contexts.get(program_id)) is not None:
                context.outside = not member
                self.queue.changed(context)

    def expected_s(self, program_id: str) -> float | None:
        """In how many seconds a program is expected back; None where nothing is learned."""
        context = None if self.queue is None else self.contexts.get(program_id)
        return None if context is None else self.contexts.expected_s(context, self.now)

    def boundary(self, notes: Sequence[Sequence[Any]], now: float) -> None:
        """Tools and humans that programs began to wait for, or were answered by.

        A note is (program id, what, name): what is ``tool``, ``returned``, ``human``,
        ``answered``, or ``dropped``, with the first tokens of the call ``name`` that are kept.
        """
        if self.queue is None:
            return
        self.at(now)
        contexts = self.contexts
        for program_id, what, name, *more in notes:
            if what == "tool":
                context = contexts.tool_started(program_id, name, now)
            elif what == "returned":
                context = contexts.tool_ended(program_id, now)
            elif what == "human":
                context = contexts.human_asked(program_id, now)
            elif what == "answered":
                context = contexts.human_answered(program_id, now)
            elif what == "dropped":
                context = self._drop(program_id, name, *more)
            else:
                raise ConfigError(f"unknown notification {what!r} of program {program_id}")
            if context is not None:
                self._changed(context)

    def _drop(self, program_id: str, call_id: str, kept: int = 0) -> Context | None:
        """What a call had computed after its first tokens, no one will come back for."""
        context, hashes = self.contexts.get(program_id), self._calls.get(call_id, ())
        if context is None or self.queue is None:
            return None
        first = kept // self._block_size  # a block with more is its own
        blocks = find_cached(self._scheduler, hashes[first:])
        self.queue.give_up(blocks[::-1], context)
        if self.host is not None:
            self.host.give_up(keys_of(self._scheduler, hashes[first:]), context)
        return context

    def cache_emptied(self) -> None:
        """The prefix cache was reset: there is nothing to protect, and nothing was lost."""
        self._history.clear()
        if self.queue is not None:
            self.queue.release_all()
