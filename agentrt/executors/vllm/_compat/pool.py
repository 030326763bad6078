"""KV-cache blocks: how many there are, which are free or cached, and how many a request needs; and
shortcuts through vLLM's allocation of these blocks, for tokens that need no new block.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from agentrt.executors.vllm._compat.bases import FreeKVCacheBlockQueue
    from agentrt.executors.vllm._compat.requests import Request
    from agentrt.executors.vllm._compat.scheduling import Scheduler
else:
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

__all__ = ["FreeKVCacheBlockQueue", "KVCacheBlock"]  # vLLM's own classes


def all_blocks(scheduler: Scheduler) -> int:
    """Return the number of all KV-cache blocks, used and free."""
    return len(scheduler.kv_cache_manager.block_pool.blocks)


def context_blocks(scheduler: Scheduler) -> int:
    """Return the number of context tokens that fit into the KV cache, in blocks.

    This is the number of all blocks, or less for a hybrid model, since its contexts need blocks of
    several cache groups for the same tokens.
    """
    blocks = all_blocks(scheduler)
    tokens = getattr(scheduler.cache_config, "kv_cache_size_tokens", None)
    if tokens is None or len(scheduler.kv_cache_config.kv_cache_groups) == 1:
        return blocks
    return min(blocks, int(tokens) // int(scheduler.block_size))


def free_blocks(scheduler: Scheduler) -> int:
    """Return the number of KV-cache blocks that are free."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def free_queue(scheduler: Scheduler) -> FreeKVCacheBlockQueue:
    """Return the queue of free blocks, from which vLLM allocates."""
    return scheduler.kv_cache_manager.block_pool.free_block_queue


def first_free_block(queue: FreeKVCacheBlockQueue) -> int:
    """Return the id of the block that a queue, which must not be empty, hands out next."""
    return int(queue.fake_free_list_head.next_free_block.block_id)


def cached_blocks(scheduler: Scheduler, request: Request) -> list[KVCacheBlock]:
    """Return a request's blocks that are in the prefix cache and belong to the manager's own block
    pool.
    """
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    return [
        block
        for group in manager.get_blocks(request.request_id).blocks
        for block in group
        if block._block_hash is not None and block.pool is pool
    ]


def cached_tokens(scheduler: Scheduler, request: Request) -> int:
    """Return how many of a request's tokens are in blocks of the prefix cache.

    The blocks of a load that is in flight are not in the prefix cache yet.
    """
    manager = scheduler.kv_cache_manager
    groups = manager.get_blocks(request.request_id).blocks
    managers = manager.coordinator.single_type_managers
    return max(
        (index + 1) * single.block_size
        for blocks, single in zip(groups, managers, strict=True)
        for index, block in enumerate([None, *blocks], -1)
        if block is None or block._block_hash is not None
    )


def prefix_map(scheduler: Scheduler) -> object:
    """Return the map of the blocks in the prefix cache, which vLLM replaces by a new map when it
    empties the cache.
    """
    return scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block


def log_evictions(scheduler: Scheduler, log: list[tuple[bytes, int]]) -> None:
    """Make vLLM add each block that it evicts from the prefix cache to ``log``: (old key, block
    id).

    Emptying the prefix cache creates a new map; call this function again after that.
    """
    cached = scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    take, add = type(cached).pop, log.append

    def logged(key: bytes, block_id: int) -> KVCacheBlock | None:
        add((key, block_id))
        return take(cached, key, block_id)

    cached.pop = logged


def find_cached(scheduler: Scheduler, hashes: Sequence[bytes]) -> list[KVCacheBlock]:
    """Return the blocks in the prefix cache that have these hashes, of all cache groups."""
    manager = scheduler.kv_cache_manager
    groups = [single.kv_cache_group_id for single in manager.coordinator.single_type_managers]
    pool = manager.block_pool
    # One look-up for each group: with a sliding window, a group has only the end of a context.
    matches = [pool.get_cached_block(value, [group]) for value in hashes for group in groups]
    return [block for blocks in matches if blocks for block in blocks]


def blocks_needed(scheduler: Scheduler, request: Request, free: int) -> int:
    """Return how many free KV-cache blocks a waiting request needs for all its tokens and its next
    token.

    ``free`` is the number of blocks that are free. If the request needs more, its cached prefix is
    looked up, and the blocks of the prefix that running requests use are left out of the result.
    """
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    whole = sum(-(-(request.num_tokens + 1) // manager.block_size) for manager in managers)
    if whole <= free:
        return whole
    cached = scheduler.kv_cache_manager.get_computed_blocks(request)[0].blocks
    # The null block stands for tokens that have left a sliding window. It takes no room, and vLLM
    # does not maintain its ref_cnt.
    shared = sum(1 for group in cached for block in group if block.is_null or block.ref_cnt > 0)
    return whole - shared


def more_blocks_needed(scheduler: Scheduler, request: Request) -> int:
    """Return how many KV-cache blocks a request needs for all its tokens, in addition to the blocks
    that it holds.
    """
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return sum(
        max(-(-request.num_tokens // manager.block_size) - _own(manager, request), 0)
        for manager in managers
    )


def _own(manager: Any, request: Request) -> int:
    return len(manager.req_to_blocks.get(request.request_id, ()))


def running_needs(scheduler: Scheduler) -> tuple[int, int]:
    """Return what all running requests need: (tokens of the next step, free blocks).

    The blocks are for all tokens that the requests have now, including prompt tokens that are
    computed in later steps. The block that a request with a single new token may need is not
    counted.
    """
    most = scheduler.scheduler_config.long_prefill_token_threshold or sys.maxsize
    tokens = blocks = 0
    for request in scheduler.running:
        new = (
            request.num_tokens_with_spec
            + request.num_output_placeholders
            - request.num_computed_tokens
        )
        tokens += min(new, most)
        if new > 1:
            blocks += more_blocks_needed(scheduler, request)
    return tokens, blocks


def holds_blocks(scheduler: Scheduler, request: Request) -> bool:
    """Return whether the request holds blocks of the KV cache."""
    blocks = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    return any(len(group) for group in blocks)


def unblock_holders(scheduler: Scheduler, *, stood_still: bool) -> Request | None:
    """Let one of the waiting requests that hold KV-cache blocks start. Return the request whose
    blocks must be released for that (`release_holder`); None if none has to be.

    ``stood_still`` says whether the last step had no request.
    """
    queue = scheduler.kv_holding_waiting
    if len(queue) == 0:  # the queue's own truth value is a function in Python
        return None
    _put_first(scheduler, queue)
    return _stalled_holder(scheduler, queue, stood_still=stood_still)


def _put_first(scheduler: Scheduler, queue: Any) -> None:
    """Put the waiting requests that hold KV-cache blocks into an order in which a request can
    start.

    vLLM starts these requests before all others, in the order in which they were queued, and stops
    at the first that does not fit. Their blocks become free only after they have run. So if nothing
    runs, and the first request does not fit because the requests behind it hold blocks, no request
    would ever start. Two kinds of requests must not be in front of others: a request whose load has
    failed, because it has given its blocks back but stays in this queue; and, while nothing runs, a
    request that needs more blocks than are free.
    """
    if len(queue) < 2 or not isinstance(queue, deque):
        return
    free = free_blocks(scheduler)

    def rank(request: Request) -> int:
        if not scheduler._holds_kv_blocks(request):
            return 2
        return int(not scheduler.running and more_blocks_needed(scheduler, request) > free)

    before = [*queue]
    after = sorted(before, key=rank)
    if after != before:
        queue.clear()
        queue.extend(after)


def _stalled_holder(scheduler: Scheduler, queue: Any, *, stood_still: bool) -> Request | None:
    """Return the waiting request whose blocks must be released so that a request can start; None if
    none has to be.

    A streaming session keeps its blocks while it waits for its next turn to start, and so does a
    request whose blocks were loaded. vLLM cannot preempt them, because they do not run. So if
    nothing runs, and each waiting request that holds blocks needs more blocks than are free, no
    request would ever start. The last session in vLLM's queue is returned. If there is none, the
    request that could not start in the last step is returned, if its blocks came from vLLM's own
    host memory, which can load them again, and if no step in flight will free blocks.
    """
    if scheduler.running or scheduler.pause_state is PauseState.PAUSED_ALL:
        return None
    # A session that waits for its client's next input cannot start. Its blocks cannot be released,
    # because vLLM will need its number of computed tokens.
    idle = RequestStatus.WAITING_FOR_STREAMING_REQ
    starting = [request for request in queue if request.status is not idle]
    free = free_blocks(scheduler)
    if any(more_blocks_needed(scheduler, request) <= free for request in starting):
        return None
    # A request with another status is loading, or vLLM has not tried yet to start it.
    tried = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    releasable = [
        request
        for request in starting
        if request.status in tried
        and scheduler._holds_kv_blocks(request)
        and not request.num_in_flight_tokens
        and scheduler._request_blocks_can_be_freed(request)
    ]
    sessions = [request for request in releasable if request.resumable]
    if sessions:
        return sessions[-1]
    loads_again = type(scheduler.connector).__name__ == "OffloadingConnector"
    if releasable and loads_again and stood_still and not scheduler.deferred_frees:
        return releasable[0]
    return None


def release_holder(scheduler: Scheduler, request: Request) -> None:
    """Free the blocks of a request that waits, and put it into the waiting queue. When it starts,
    it loads or computes its tokens again.
    """
    scheduler.kv_holding_waiting.remove_request(request)
    scheduler._free_request_blocks(request)
    scheduler.encoder_cache_manager.free(request)
    request.num_computed_tokens = 0
    if request.resumable:
        # The status stays WAITING: of a session with this status, vLLM's workers replace the
        # prompt.
        request.num_preemptions += 1
    scheduler.waiting.add_request(request)


# -- shortcuts through the allocation ------------------------------------------------------


def shorten_allocation(scheduler: Scheduler) -> None:
    """Install the shortcuts if they are known to have the same results as vLLM's code.

    In most steps, most calls compute one token, and their last block has room for it. For each of
    them, vLLM runs its whole code for block allocation and the prefix cache, which makes about a
    quarter of the function calls of its scheduler. The shortcuts have the same results: the
    tests in `tests.executors.vllm` compare all blocks with the blocks of vLLM's own scheduler.

    This needs a model with full attention only and hashes that cover whole blocks, as most models
    have. With other models, blocks are freed in the middle of a context or shared in part.
    """
    manager = scheduler.kv_cache_manager
    if type(manager.coordinator) is not UnitaryKVCacheCoordinator:
        return
    (group,) = manager.coordinator.single_type_managers
    whole = group.block_size == group.block_pool.hash_block_size
    if type(group) is FullAttentionManager and whole:
        _cache_full_blocks_alone(manager, group)
        _allocate_where_no_room_is_left(manager, group)


def _cache_full_blocks_alone(manager: KVCacheManager, group: FullAttentionManager) -> None:
    """Skip `cache_blocks` unless a call has full blocks that are not cached yet."""
    coordinator = manager.coordinator
    cached, size, ordinary = group.num_cached_block, group.block_size, coordinator.cache_blocks

    def cache_blocks(request: Request, num_computed_tokens: int) -> None:
        if num_computed_tokens // size > cached.get(request.request_id, 0):
            ordinary(request, num_computed_tokens)

    coordinator.cache_blocks = cache_blocks
    if manager.enable_caching:
        manager.cache_blocks = cache_blocks


def _allocate_where_no_room_is_left(manager: KVCacheManager, group: FullAttentionManager) -> None:
    """Skip the allocation for a running call if its last block has room for the new tokens."""
    blocks, size, ordinary = group.req_to_blocks, group.block_size, manager.allocate_slots
    cache_blocks, cached = manager.coordinator.cache_blocks, group.num_cached_block
    nothing = _NoBlocks(manager.empty_kv_cache_blocks.blocks)

    def allocate_slots(
        request: Request,
        num_new_tokens: int,
        *args: Any,
        num_lookahead_tokens: int = 0,
        **kwargs: Any,  # vLLM passes these for calls that begin
    ) -> KVCacheBlocks | None:
        name, tokens = request.request_id, request.num_computed_tokens + num_new_tokens
        room = size * len(blocks.get(name, ()))
        if args or kwargs or not num_new_tokens or tokens + num_lookahead_tokens > room:
            if num_lookahead_tokens:
                kwargs["num_lookahead_tokens"] = num_lookahead_tokens
            return ordinary(request, num_new_tokens, *args, **kwargs)
        if tokens // size > cached.get(name, 0):
            cache_blocks(request, min(tokens, request.num_tokens))
        return nothing

    manager.allocate_slots = allocate_slots


class _NoBlocks(KVCacheBlocks):
    """No new blocks. vLLM asks for their ids in each step for each call that decodes."""

    @override
    def get_block_ids(self, allow_none: bool = False, **groups: Any) -> Any:
        return None if allow_none else super().get_block_ids(**groups)
