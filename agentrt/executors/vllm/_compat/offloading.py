"""vLLM's offloading of KV blocks to host memory: its cache policy and the keys of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus, order_request_keys

if TYPE_CHECKING:
    from agentrt.executors.vllm._compat.bases import CachePolicy
    from agentrt.executors.vllm._compat.scheduling import Scheduler
else:
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

__all__ = ["CachePolicy", "ChunkStatus", "OffloadKey", "ReqContext"]  # vLLM's own classes


def policy_of(scheduler: Scheduler) -> CachePolicy | None:
    """Return the cache policy of the scheduler's host memory; None if it does not offload."""
    connector: Any = getattr(scheduler, "connector", None)
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    return getattr(manager, "_policy", None)


def in_prefix_order(
    groups: Sequence[Sequence[OffloadKey]], context: ReqContext
) -> list[OffloadKey]:
    """Return a request's keys, of all cache groups, in the order of its prompt."""
    return order_request_keys(groups, context)


def keys_of(scheduler: Scheduler, hashes: Sequence[bytes]) -> list[OffloadKey]:
    """Return the keys of blocks with these hashes in host memory, for all cache groups."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    groups = [manager.kv_cache_group_id for manager in managers]
    return [make_offload_key(value, group) for value in hashes for group in groups]
