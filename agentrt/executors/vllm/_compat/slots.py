"""Shortcuts through vLLM's allocation of KV-cache slots, for tokens that need no new block.

In most steps, most calls compute one token, and their last block has room for it. vLLM runs its
whole block allocation and prefix-cache code for each of them: a quarter of all function calls of
its scheduler (`python -m benchmarks scheduler`). The shortcuts have the same results: the tests in
`tests.executors.vllm` compare all blocks with the blocks of vLLM's own scheduler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

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
