"""The prefix cache: the hashes that its blocks go by, which it holds, and what changes in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
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
    from agentrt.executors.vllm._compat.scheduling import Scheduler


def caches_prefixes(scheduler: Scheduler) -> bool:
    """Whether blocks keep their content for later calls, once they are free."""
    return bool(scheduler.kv_cache_manager.block_pool.enable_caching)


def hash_block_size(scheduler: Scheduler) -> int:
    """Tokens that one of a request's block hashes stands for."""
    return int(scheduler.kv_cache_manager.block_pool.hash_block_size)


def block_hash(
    algorithm: str, before: bytes | None, ids: tuple[int, ...], keys: tuple[Any, ...] | None
) -> bytes:
    """The hash of a block after the block with the hash ``before``, as the engine computes it.

    ``algorithm`` is vLLM's ``prefix_caching_hash_algo``, ``keys`` the block's `block_keys`.
    """
    return hash_block_tokens(_hash_function(algorithm), before, ids, keys)


def how_hashed(vllm_config: Any) -> tuple[str, int]:
    """The function that hashes an engine's blocks, by vLLM's name, and how many of the tokens
    after a block are in its hash: with EAGLE's drafts some are (0.33), else none.
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
    """What beside its tokens each of a prompt's full blocks is known by.

    ``prompt`` is an ``EngineInput`` (or has no images), ``adapter`` a ``LoRARequest`` or None,
    ``ahead`` counts the tokens after a block that its hash covers.
    """
    request: Any = SimpleNamespace(
        mm_features=_features(prompt), lora_request=adapter, cache_salt=salt, prompt_embeds=None
    )
    keys, feature = [], 0
    for end in range(size, len(ids) - ahead + 1, size):
        # An image may lie in two blocks' tokens ahead: with some, look from the first again.
        found, feature = generate_block_hash_extra_keys(
            request, end - size, end + ahead, 0 if ahead else feature
        )
        keys.append((found, *ids[end : end + ahead]) if ahead else found)
    return keys


def _features(prompt: Mapping[str, Any]) -> list[Any]:
    """Where a prompt's images are, as block hashes are made of them."""
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


def compute_from(scheduler: Scheduler, key: str) -> None:
    """Look up no more of a request in the prefix cache than the tokens before a position.

    ``key`` names that position in the request's ``extra_args``. From there on its prompt's log
    probabilities are asked for, which only tokens that are computed have.
    """
    manager = scheduler.kv_cache_manager
    for name in ("get_computed_blocks", "get_computed_blocks_for_connector"):
        if (look_up := getattr(manager, name, None)) is not None:
            setattr(manager, name, _limited(look_up, key))


def _limited(look_up: Callable[..., Any], key: str) -> Callable[..., Any]:
    def limited(request: Request, *longest: int | None) -> Any:
        most = extra_args(request).get(key)
        if not isinstance(most, int):
            return look_up(request, *longest)
        # What was found is computed up to the last token but one, or up to what is given (0.33).
        given = (None if one is None else min(one, most) for one in longest)
        return look_up(_Shorter(request, most + 1), *given)

    return limited


class _Shorter:
    """A request with fewer tokens, for a look-up."""

    def __init__(self, request: Request, tokens: int) -> None:
        self._request = request
        self.num_tokens = min(request.num_tokens, tokens)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)
