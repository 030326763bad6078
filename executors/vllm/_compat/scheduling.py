"""vLLM's scheduler: its classes, its settings, and what one of its steps held."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec

if TYPE_CHECKING:
    from agentrt.executors.vllm._compat.requests import Request

__all__ = ["AsyncScheduler", "RequestQueue", "Scheduler", "SchedulerOutput"]  # vLLM's own


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
    return int(scheduler.max_num_active_reqs - taken)


def preempt(scheduler: Scheduler, request: Request, now: float) -> None:
    """Preempt a request that has left the running ones, before a step, as vLLM does within one."""
    scheduler._preempt_request(request, now, drop_stale_output=scheduler.requires_kv_delivery)
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)


def may_preempt(scheduler: Scheduler, request: Request) -> bool:
    """Whether preempting this running request frees its blocks at once, and loses nothing.

    vLLM drops a streaming session from its queues when the output that ends its turn comes in
    after its preemption.
    """
    in_flight = request.resumable and request.num_in_flight_tokens
    return not in_flight and scheduler._request_blocks_can_be_freed(request)


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
