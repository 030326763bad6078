"""The only file that names vLLM's internals.

What is used and is not public API: `AsyncScheduler` (the documented seam
``scheduler_cls``, whose interface vLLM does not promise), its queues, `_preempt_request`,
`_connector_finished`, the KV-cache manager's block pool, its map of hashes and its queue of
free blocks, the publisher of KV events, the hash of a block, and the lookup of utility
methods on `EngineCore`. Read against vLLM 0.32.0. It is long because it is the only one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import (
    FreeKVCacheBlockQueue,
    KVCacheBlock,
    get_group_id,
    hash_block_tokens,
    init_none_hash,
    make_block_hash_with_group_id,
)
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

UTILITY = "agentrt"
"""The name under which a client reaches our scheduler: `EngineCore.agentrt(op, argument)`."""
PROBE = "agentrt_probe"
"""The name under which a client has any scheduler watched: `EngineCore.agentrt_probe(op)`."""


def install_control() -> None:
    """Let clients call ``scheduler.control(op, argument)`` in the engine core, and a `Probe`.

    vLLM looks utility methods up by name on the engine core when a message arrives, so
    one class attribute, set where the scheduler class is imported, is the whole door.
    """

    def agentrt(self: Any, op: str, argument: Any = None) -> Any:
        return self.scheduler.control(op, argument)

    def agentrt_probe(self: Any, op: str) -> Any:
        from agentrt.executors.vllm.probe import answer

        return answer(self.scheduler, op)

    setattr(EngineCore, UTILITY, agentrt)
    setattr(EngineCore, PROBE, agentrt_probe)


def start_reader(llm: AsyncLLM) -> None:
    """Start the client's task that reads the engine core's outputs."""
    llm._run_output_handler()


def stop_reader(llm: AsyncLLM) -> None:
    """Cancel the task that `start_reader` started."""
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def close_context(llm: AsyncLLM) -> None:
    """Close the ZeroMQ context that vLLM's own shutdown leaves to the garbage collector."""
    llm.engine_core.resources.ctx.destroy(linger=0)


def core_pids(llm: AsyncLLM) -> list[int]:
    """The process of the engine core, or several with data parallelism."""
    manager = llm.engine_core.resources.engine_manager
    return [] if manager is None else [process.pid for process in manager.processes]


def admitted(output: SchedulerOutput) -> Iterable[str]:
    """The requests that began to run in this step, for the first time or again."""
    for new in output.scheduled_new_reqs:
        yield new.req_id
    yield from output.scheduled_cached_reqs.resumed_req_ids


def computed_before(output: SchedulerOutput) -> dict[str, int]:
    """How many tokens of each scheduled request were computed before this step."""
    cached = output.scheduled_cached_reqs
    before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    before.update((new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs)
    return before


def sampled_tokens(result: Any) -> dict[str, list[int]]:
    """The tokens that a step's model output holds for each request."""
    sampled = result.sampled_token_ids
    return {
        request_id: [int(token) for token in sampled[index]]
        for request_id, index in result.req_id_to_index.items()
        if sampled and len(sampled[index])
    }


def describe_request(request: Request) -> dict[str, Any]:
    """All of a request that decides how it is scheduled, as plain values.

    ``cannot`` says why its part in a recording cannot be replayed, else None.
    """
    params = request.sampling_params
    return {
        "id": request.request_id,
        "prompt": list(request.prompt_token_ids or ()),
        "max_tokens": request.max_tokens,
        "stop": sorted(_stop_tokens(params)) if params is not None else [],
        "extra": extra_args(request),
        "session": getattr(request, "session_id", None),
        "salt": request.cache_salt,
        "cannot": _cannot_replay(request),
    }


def _stop_tokens(params: Any) -> set[int]:
    eos = params.eos_token_id
    return {*(params.stop_token_ids or ()), *(() if eos is None else (eos,))}


def _cannot_replay(request: Request) -> str | None:
    reasons = {
        "its output is bound to a grammar, which becomes ready at some moment": (
            request.use_structured_output
        ),
        "it has images or embeddings in its prompt": (
            request.mm_features or request.prompt_token_ids is None
        ),
        "it is fed while it runs": request.resumable,
        "it wants an embedding, not tokens": request.pooling_params is not None,
        "it uses a LoRA adapter": request.lora_request is not None,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def dimensions(scheduler: Scheduler) -> dict[str, Any]:
    """The engine's sizes and settings that its decisions depend on, as plain values."""
    config = scheduler.scheduler_config
    settings = {f.name: getattr(config, f.name) for f in fields(config)}
    return {
        "vllm": vllm.__version__,
        "model": scheduler.vllm_config.model_config.model,
        "blocks": scheduler.kv_cache_config.num_blocks,
        "block_size": scheduler.block_size,
        "max_model_len": scheduler.max_model_len,
        "prefix_caching": scheduler.cache_config.enable_prefix_caching,
        "scheduler": {
            name: value
            for name, value in settings.items()
            if name != "scheduler_cls" and isinstance(value, bool | int | float | str | None)
        },
    }


def not_replayable(scheduler: Scheduler) -> str | None:
    """Why another scheduler could not take the same decisions from a recording, or None."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    config = scheduler.vllm_config
    reasons = {
        "its layers do not share one kind of KV cache": (
            len(groups) != 1 or type(groups[0].kv_cache_spec) is not FullAttentionSpec
        ),
        "it moves KV cache between engines": (
            scheduler.connector is not None or scheduler.ec_connector is not None
        ),
        "it decodes speculatively": config.speculative_config is not None,
        "it is pipelined over devices": config.parallel_config.pipeline_parallel_size > 1,
        "it is one of several data-parallel ones": config.parallel_config.data_parallel_size > 1,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def free_slots(scheduler: Scheduler) -> int:
    """Batch slots that no running request holds."""
    taken = len(scheduler.running) + scheduler.num_waiting_for_streaming_input
    limit = getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)
    return int(limit - taken)


def free_blocks(scheduler: Scheduler) -> int:
    """KV-cache blocks that can be handed out now."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def free_queue(scheduler: Scheduler) -> FreeKVCacheBlockQueue:
    """The queue that free blocks are handed out from."""
    return scheduler.kv_cache_manager.block_pool.free_block_queue


def all_blocks(scheduler: Scheduler) -> int:
    """KV-cache blocks that there are, used and free."""
    return len(scheduler.kv_cache_manager.block_pool.blocks)


def hash_block_size(scheduler: Scheduler) -> int:
    """Tokens that one of a request's block hashes stands for."""
    return int(scheduler.kv_cache_manager.block_pool.hash_block_size)


def caches_prefixes(scheduler: Scheduler) -> bool:
    """Whether blocks keep their content for later calls, once they are free."""
    return bool(scheduler.kv_cache_manager.block_pool.enable_caching)


def cached_blocks(scheduler: Scheduler, request: Request) -> list[KVCacheBlock]:
    """A request's blocks that later calls can find, of vLLM's first pool."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    return [
        block
        for group in manager.get_blocks(request.request_id).blocks
        for block in group
        if block.block_hash is not None and block.pool is pool
    ]


def hear_events(scheduler: Scheduler, hear: Callable[[Iterable[Any]], None]) -> bool:
    """Have each step's KV events told to ``hear`` as well. False where vLLM makes none.

    Whoever else vLLM publishes them to gets them as before.
    """
    if not scheduler.enable_kv_cache_events:
        return False
    # Whole hashes: with the 64 bits that events have by default, no block could be asked for.
    os.environ["VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES"] = "0"
    publisher = scheduler.kv_event_publisher
    publish = publisher.publish

    def both(batch: Any) -> None:
        hear(batch.events)
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


def holds_block(scheduler: Scheduler, key: bytes) -> bool:
    """Whether the prefix cache has a block with this key (hash and group)."""
    pool = scheduler.kv_cache_manager.block_pool
    return pool.cached_block_hash_to_block.get_one_block(key) is not None


def held_blocks(scheduler: Scheduler) -> list[bytes]:
    """The keys of all blocks of the first group that the prefix cache has, each once."""
    hashes = (block.block_hash for block in scheduler.kv_cache_manager.block_pool.blocks)
    return list(dict.fromkeys(h for h in hashes if h is not None and not get_group_id(h)))


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


def blocks_held(scheduler: Scheduler, request: Request) -> int:
    """KV-cache blocks that preempting this request would free."""
    groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    return sum(1 for group in groups for block in group if block.ref_cnt == 1)


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


def new_blocks(scheduler: Scheduler, request: Request, room: int) -> tuple[int, int]:
    """Blocks that a waiting request would fill anew, and those that it would find filled.

    Nothing is looked up where all would fit into ``room`` blocks, nor where half of them
    would not and less than half can be found: then none counts as found.
    """
    manager = scheduler.kv_cache_manager
    managers = manager.coordinator.single_type_managers
    whole = sum(-(-(request.num_tokens + 1) // one.block_size) for one in managers)
    if whole <= room or not manager.prefix_cache_lookup_enabled(request):
        return whole, 0
    if whole >= 2 * room and not _may_find_half(manager, request, whole):
        return whole, 0
    most = request.num_tokens - 1
    groups = manager.coordinator.find_longest_cache_hit(request.block_hashes, most)[0]
    found = sum(len(group) for group in groups)
    return whole - found, found


def _may_find_half(manager: Any, request: Request, whole: int) -> bool:
    """False where the block that ends the first half of ``whole`` is not cached: one look."""
    managers, pool = manager.coordinator.single_type_managers, manager.block_pool
    if len(managers) > 1 or managers[0].block_size != pool.hash_block_size:
        return True  # blocks are not numbered as their hashes are
    at = (whole + 1) // 2 - 1
    if at >= len(request.block_hashes):
        return False
    group = managers[0].kv_cache_group_id
    return pool.get_cached_block(request.block_hashes[at], [group]) is not None


def may_preempt(scheduler: Scheduler, request: Request) -> bool:
    """Whether preempting this running request frees its blocks at once."""
    ask: Callable[[Request], bool] | None = getattr(scheduler, "_request_blocks_can_be_freed", None)
    return ask is None or ask(request)


def tokens_left(request: Request) -> int:
    """Tokens that the request may still produce, those in flight counted as produced."""
    done = len(request.output_token_ids) + request.num_output_placeholders
    return int(request.max_tokens) - done


def extra_args(request: Request) -> dict[str, Any]:
    """What the client attached to the request's sampling parameters."""
    params = request.sampling_params
    return (params.extra_args or {}) if params is not None else {}


__all__ = [
    "PROBE",
    "UTILITY",
    "AsyncScheduler",
    "FreeKVCacheBlockQueue",
    "KVCacheBlock",
    "Request",
    "RequestQueue",
    "Scheduler",
    "SchedulerOutput",
    "admitted",
    "all_blocks",
    "block_hash",
    "blocks_held",
    "blocks_needed",
    "cached_blocks",
    "caches_prefixes",
    "close_context",
    "computed_before",
    "describe_request",
    "dimensions",
    "event_blocks",
    "extra_args",
    "free_blocks",
    "free_queue",
    "free_slots",
    "hash_block_size",
    "hear_events",
    "held_blocks",
    "holds_block",
    "install_control",
    "may_preempt",
    "new_blocks",
    "not_replayable",
    "sampled_tokens",
    "start_reader",
    "stop_reader",
    "tokens_left",
]
