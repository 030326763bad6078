"""KV-cache blocks: how many there are, who holds them, and what a request takes of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import KVCacheBlock

if TYPE_CHECKING:
    from agentrt.executors.vllm._compat.bases import FreeKVCacheBlockQueue
    from agentrt.executors.vllm._compat.requests import Request
    from agentrt.executors.vllm._compat.scheduling import Scheduler
else:
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

__all__ = ["FreeKVCacheBlockQueue", "KVCacheBlock"]  # vLLM's own


def all_blocks(scheduler: Scheduler) -> int:
    """KV-cache blocks that there are, used and free."""
    return len(scheduler.kv_cache_manager.block_pool.blocks)


def context_blocks(scheduler: Scheduler) -> int:
    """The longest contexts that fit, in blocks of a context's tokens.

    Of a hybrid model, whose contexts hold blocks of several kinds, these are fewer than there are.
    """
    blocks = all_blocks(scheduler)
    tokens = getattr(scheduler.cache_config, "kv_cache_size_tokens", None)
    if tokens is None or len(scheduler.kv_cache_config.kv_cache_groups) == 1:
        return blocks
    return min(blocks, int(tokens) // int(scheduler.block_size))


def free_blocks(scheduler: Scheduler) -> int:
    """KV-cache blocks that can be handed out now."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def free_queue(scheduler: Scheduler) -> FreeKVCacheBlockQueue:
    """The queue that free blocks are handed out from."""
    return scheduler.kv_cache_manager.block_pool.free_block_queue


def first_free_block(queue: FreeKVCacheBlockQueue) -> int:
    """The id of the block that a queue hands out next; it must not be empty."""
    return int(queue.fake_free_list_head.next_free_block.block_id)


def cached_blocks(scheduler: Scheduler, request: Request) -> list[KVCacheBlock]:
    """A request's blocks that later calls can find, of vLLM's first pool."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    return [
        block
        for group in manager.get_blocks(request.request_id).blocks
        for block in group
        if block._block_hash is not None and block.pool is pool
    ]


def log_evictions(scheduler: Scheduler, log: list[tuple[bytes, int]]) -> None:
    """Add each cached block to ``log`` that is handed out anew: its old key, and its id. To be
    asked for again when the prefix cache was emptied.
    """
    cached = scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    take, add = type(cached).pop, log.append

    def logged(key: bytes, block_id: int) -> KVCacheBlock | None:
        add((key, block_id))
        return take(cached, key, block_id)

    cached.pop = logged


def find_cached(scheduler: Scheduler, hashes: Sequence[bytes]) -> list[KVCacheBlock]:
    """The blocks that the prefix cache has with these hashes, of all kinds of its cache."""
    manager = scheduler.kv_cache_manager
    groups = [one.kv_cache_group_id for one in manager.coordinator.single_type_managers]
    pool = manager.block_pool
    # A sliding window keeps the end of a context alone: each kind is asked for by itself.
    found = [pool.get_cached_block(value, [group]) for value in hashes for group in groups]
    return [block for blocks in found if blocks for block in blocks]


def blocks_needed(scheduler: Scheduler, request: Request, free: int) -> int:
    """KV-cache blocks that this waiting request takes out of the free ones, all its tokens.

    Its cached prefix is looked up only when the request would not fit without one.
    """
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    whole = sum(-(-(request.num_tokens + 1) // manager.block_size) for manager in managers)
    if whole <= free:
        return whole
    cached = scheduler.kv_cache_manager.get_computed_blocks(request)[0].blocks
    shared = sum(1 for group in cached for block in group if block.ref_cnt > 0)
    return whole - shared


def running_needs(scheduler: Scheduler) -> tuple[int, int]:
    """What running requests will take: tokens of the next step, and free blocks in all.

    The blocks are those of the tokens that each has now: most of them, of prompts that are computed
    in parts. A waiting request can begin if it leaves tokens to it.
    """
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
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
            for manager in managers:
                held = len(manager.req_to_blocks.get(request.request_id, ()))
                blocks += max(-(-request.num_tokens // manager.block_size) - held, 0)
    return tokens, blocks
