"""Shortcuts through vLLM's allocation of KV-cache slots, for tokens that need no new block.

In most steps, most calls compute one token, and their last block has room for it. vLLM runs its
whole block allocation and prefix-cache code for each of them: a quarter of all function calls of
its scheduler (`python -m benchmarks scheduler`). The shortcuts have the same results: the tests in
`tests.executors.vllm` compare every block with those of vLLM's own scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager

    from agentrt.executors.vllm._compat.requests import Request
    from agentrt.executors.vllm._compat.scheduling import Scheduler


def shorten_allocation(scheduler: Scheduler) -> None:
    """Install the shortcuts if they are known to have the same results as vLLM's code.

    This needs a model with full attention only and hashes that cover whole blocks, as most models
    have. With other models, blocks are freed in the middle of a context or shared in part.
    """
    manager = scheduler.kv_cache_manager
    if type(manager.coordinator) is not UnitaryKVCacheCoordinator:
        return
    (group,) = manager.coordinator.single_type_managers
    whole = group.block_size == group.block_pool.hash_block_size
    if type(group) is FullAttentionManager and whole:
        _cache_full_blocks_alone(manager.coordinator, group)
        _allocate_where_no_room_is_left(manager, group)


def _cache_full_blocks_alone(
    coordinator: UnitaryKVCacheCoordinator, group: FullAttentionManager
) -> None:
    """Skip `cache_blocks` unless a call has full blocks that are not cached yet."""
    cached, size, ordinary = group.num_cached_block, group.block_size, coordinator.cache_blocks

    def cache_blocks(request: Request, num_computed_tokens: int) -> None:
        if num_computed_tokens // size > cached.get(request.request_id, 0):
            ordinary(request, num_computed_tokens)

    coordinator.cache_blocks = cache_blocks


def _allocate_where_no_room_is_left(manager: KVCacheManager, group: FullAttentionManager) -> None:
    """Skip the allocation for a running call if its last block has room for the new tokens."""
    blocks, size, ordinary = group.req_to_blocks, group.block_size, manager.allocate_slots
    cache_blocks, nothing = manager.coordinator.cache_blocks, manager.empty_kv_cache_blocks

    def allocate_slots(
        request: Request,
        num_new_tokens: int,
        *args: Any,
        num_lookahead_tokens: int = 0,
        **kwargs: Any,  # vLLM passes these for calls that begin
    ) -> KVCacheBlocks | None:
        tokens = request.num_computed_tokens + num_new_tokens
        room = size * len(blocks.get(request.request_id, ()))
        if args or kwargs or not num_new_tokens or tokens + num_lookahead_tokens > room:
            if num_lookahead_tokens:
                kwargs["num_lookahead_tokens"] = num_lookahead_tokens
            return ordinary(request, num_new_tokens, *args, **kwargs)
        cache_blocks(request, min(tokens, request.num_tokens))
        return nothing

    manager.allocate_slots = allocate_slots
