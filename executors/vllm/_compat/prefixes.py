"""The prefix cache: the hashes that its blocks go by, which it holds, and what changes in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    get_group_id,
    hash_block_tokens,
    init_none_hash,
    make_block_hash_with_group_id,
)

if TYPE_CHECKING:
    from agentrt.executors.vllm._compat.scheduling import Scheduler


def caches_prefixes(scheduler: Scheduler) -> bool:
    """Whether blocks keep their content for later calls, once they are free."""
    return bool(scheduler.kv_cache_manager.block_pool.enable_caching)


def hash_block_size(scheduler: Scheduler) -> int:
    """Tokens that one of a request's block hashes stands for."""
    return int(scheduler.kv_cache_manager.block_pool.hash_block_size)


def block_hash(
    algorithm: str, before: bytes | None, ids: tuple[int, ...], salt: str | None
) -> bytes:
    """The hash of a block after the block with the hash ``before``, as the engine computes it.

    ``algorithm`` is vLLM's ``prefix_caching_hash_algo``; a ``salt`` is in a prompt's first block.
    """
    keys = (("cache_salt", salt),) if salt and before is None else None
    return hash_block_tokens(_hash_function(algorithm), before, ids, keys)


@cache
def _hash_function(name: str) -> Callable[[Any], bytes]:
    function = get_hash_fn_by_name(name)
    init_none_hash(function)
    return function


def is_cached(scheduler: Scheduler, key: bytes) -> bool:
    """Whether the prefix cache has a block with this key (hash and group)."""
    pool = scheduler.kv_cache_manager.block_pool
    return pool.cached_block_hash_to_block.get_one_block(key) is not None


def cached_keys(scheduler: Scheduler) -> list[bytes]:
    """The keys of all blocks of the first group that the prefix cache has, each once."""
    hashes = (block.block_hash for block in scheduler.kv_cache_manager.block_pool.blocks)
    return list(dict.fromkeys(h for h in hashes if h is not None and not get_group_id(h)))


def on_events(scheduler: Scheduler, listener: Callable[[Iterable[Any]], None]) -> bool:
    """Have each step's KV events told to ``listener`` as well. False where vLLM makes none.

    Whoever else vLLM publishes them to gets them as before.
    """
    if not scheduler.enable_kv_cache_events:
        return False
    # Whole hashes: with the 64 bits that events have by default, no block could be asked for.
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
    publisher = scheduler.kv_event_publisher
    publish = publisher.publish

    def both(batch: Any) -> None:
        listener(batch.events)
        publish(batch)

    publisher.publish = both
    return True


def event_blocks(event: Any) -> list[bytes] | None:
    """The keys in the cache of the blocks that an event speaks of; None where it means all.

    Of a model with several kinds of KV cache, those of the first kind only.
    """
    if isinstance(event, AllBlocksCleared):
        return None
    if not isinstance(event, BlockStored | BlockRemoved) or event.group_idx:
        return []
    return [make_block_hash_with_group_id(value, 0) for value in event.block_hashes]
