"""The prefix cache: hashes of blocks, the blocks that it has, and the events of its changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.multimodal.utils import argsort_mm_positions
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    get_group_id,
    hash_block_tokens,
    init_none_hash,
    make_block_hash_with_group_id,
)

from agentrt.executors.vllm._compat.requests import Request, extra_args

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler


def caches_prefixes(scheduler: Scheduler) -> bool:
    """Return whether prefix caching is on: free blocks keep their content for later calls."""
    return bool(scheduler.kv_cache_manager.block_pool.enable_caching)


def hash_block_size(scheduler: Scheduler) -> int:
    """Return the number of tokens that a block hash covers."""
    return int(scheduler.kv_cache_manager.block_pool.hash_block_size)


def block_hash(
    algorithm: str, before: bytes | None, ids: tuple[int, ...], keys: tuple[Any, ...] | None
) -> bytes:
    """Return the hash of a block as the engine computes it.

    ``before`` is the hash of the block before it, ``ids`` are its token ids, ``keys`` its extra
    keys (see `block_keys`), and ``algorithm`` is vLLM's ``prefix_caching_hash_algo``.
    """
    return hash_block_tokens(_hash_function(algorithm), before, ids, keys)


def how_hashed(vllm_config: Any) -> tuple[str, int]:
    """Return the name of an engine's hash algorithm, and how many tokens after a block its hash
    covers.

    The number is 0, except with EAGLE's speculative decoding in vLLM 0.33.
    """
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    return algorithm, getattr(vllm_config, "num_hash_lookahead_tokens", 0)


def block_keys(
    prompt: Mapping[str, Any],
    adapter: Any,
    salt: str | None,
    size: int,
    ids: tuple[int, ...],
    ahead: int,
) -> list[tuple[Any, ...] | None]:
    """Return for each full block of a prompt the keys that the block's hash covers in addition to
    its tokens.

    ``prompt`` is an ``EngineInput`` (or any mapping, if it has no images), ``adapter`` a
    ``LoRARequest`` or None, ``salt`` the cache salt, ``size`` the tokens of a block, ``ids`` the
    prompt's token ids, and ``ahead`` the number of tokens after a block that its hash covers.
    """
    request: Any = SimpleNamespace(
        mm_features=_features(prompt), lora_request=adapter, cache_salt=salt, prompt_embeds=None
    )
    keys, feature = [], 0
    for end in range(size, len(ids) - ahead + 1, size):
        # With tokens ahead, the ranges of blocks overlap, and an image may lie in two of them:
        # begin again with the first image.
        extra, feature = generate_block_hash_extra_keys(
            request, end - size, end + ahead, 0 if ahead else feature
        )
        keys.append((extra, *ids[end : end + ahead]) if ahead else extra)
    return keys


def _features(prompt: Mapping[str, Any]) -> list[Any]:
    """Return a prompt's images with their positions, in the form that block hashes need."""
    if prompt.get("type") != "multimodal":
        return []
    places, hashes = prompt["mm_placeholders"], prompt["mm_hashes"]
    return [
        SimpleNamespace(identifier=hashes[kind][at], mm_position=places[kind][at])
        for kind, at in argsort_mm_positions(places)
    ]


@cache
def _hash_function(name: str) -> Callable[[Any], bytes]:
    function = get_hash_fn_by_name(name)
    init_none_hash(function)
    return function


def is_cached(scheduler: Scheduler, key: bytes) -> bool:
    """Return whether the prefix cache has a block with this key (block hash and cache group)."""
    pool = scheduler.kv_cache_manager.block_pool
    return pool.cached_block_hash_to_block.get_one_block(key) is not None


def cached_keys(scheduler: Scheduler) -> list[bytes]:
    """Return the keys of all blocks in the prefix cache, of the first cache group, without
    repeats.
    """
    hashes = (block.block_hash for block in scheduler.kv_cache_manager.block_pool.blocks)
    return list(dict.fromkeys(h for h in hashes if h is not None and not get_group_id(h)))


def on_events(scheduler: Scheduler, listener: Callable[[Iterable[Any]], None]) -> bool:
    """Make vLLM pass each step's KV events to ``listener``, too, before it publishes them.

    Returns False if the scheduler makes no KV events.
    """
    if not scheduler.enable_kv_cache_events:
        return False
    # By default events have only 64 bits of a hash, by which no block can be looked up.
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
    publisher = scheduler.kv_event_publisher
    publish = publisher.publish

    def both(batch: Any) -> None:
        listener(batch.events)
        publish(batch)

    publisher.publish = both
    return True


def event_blocks(event: Any) -> list[bytes] | None:
    """Return the cache keys of the blocks in a KV event; None if the event is about all blocks.

    Only blocks of the first cache group are reported. Blocks in host memory are not reported,
    because they are stored and evicted there whether the GPU has them or not.
    """
    if isinstance(event, AllBlocksCleared):
        return None
    if not isinstance(event, BlockStored | BlockRemoved) or event.group_idx:
        return []
    if event.medium not in (None, MEDIUM_GPU):
        return []
    return [make_block_hash_with_group_id(value, 0) for value in event.block_hashes]


def compute_from(scheduler: Scheduler, key: str) -> None:
    """Make vLLM look up only the beginning of a prompt in the prefix cache, for requests whose
    ``extra_args`` have ``key``.

    The value of ``key`` is the position from which tokens are computed. Such a request wants the
    log probabilities of these tokens, and cached tokens have none.
    """
    manager = scheduler.kv_cache_manager
    for name in ("get_computed_blocks", "get_computed_blocks_for_connector"):
        if (look_up := getattr(manager, name, None)) is not None:
            setattr(manager, name, _limited(look_up, key))


def _limited(look_up: Callable[..., Any], key: str) -> Callable[..., Any]:
    def limited(request: Request, *limits: int | None) -> Any:
        if (most := _position(request, key)) is None:
            return look_up(request, *limits)
        # In vLLM 0.32 a look-up never returns the last token, hence one more; 0.33 takes a limit.
        lowered = (None if limit is None else min(limit, most) for limit in limits)
        return look_up(_Shorter(request, most + 1), *lowered)

    return limited


def _position(request: Request, key: str) -> int | None:
    position = extra_args(request).get(key)
    # A client can send any value, and vLLM's engine core would die of a negative length.
    return position if type(position) is int and position >= 0 else None


def readable_tokens(request: Request, key: str) -> int:
    """Return how many tokens of a prompt vLLM may read from the prefix cache.

    If the log probabilities of the whole prompt are wanted, the result is 0. If the request has a
    position of `compute_from`, vLLM may read the tokens before this position. In no case does it
    read the last token.
    """
    if request.skip_reading_prefix_cache:
        return 0
    most, position = request.num_prompt_tokens - 1, _position(request, key)
    return most if position is None else min(most, position)


class _Shorter:
    """A request that claims to have at most ``tokens`` tokens, for a look-up."""

    def __init__(self, request: Request, tokens: int) -> None:
        self._request = request
        self.num_tokens = min(request.num_tokens, tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)
