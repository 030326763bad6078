"""vLLM's offloading of KV blocks to host memory: its cache policy and the keys of its chunks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.policies.base import ChunkStatus, order_request_keys

if TYPE_CHECKING:
    from agentrt.executors.vllm._compat.bases import CachePolicy
    from agentrt.executors.vllm._compat.requests import Request
    from agentrt.executors.vllm._compat.scheduling import Scheduler, SchedulerOutput
else:
    from vllm.v1.kv_offload.cpu.policies.base import CachePolicy

__all__ = ["CachePolicy", "ChunkStatus", "OffloadKey", "ReqContext"]  # vLLM's own classes


def policy_of(scheduler: Scheduler) -> CachePolicy | None:
    """Return the cache policy of the scheduler's host memory; None if it does not offload."""
    connector: Any = getattr(scheduler, "connector", None)
    manager = getattr(getattr(connector, "connector_scheduler", None), "manager", None)
    return getattr(manager, "_policy", None)


def remove_fences_once(scheduler: Scheduler) -> None:
    """Let vLLM's connector remove the fence of each block of a copy to host memory only once.

    A copy may contain a block twice: when it was partly filled, and when it was full, as after a
    turn of a streaming session. vLLM would remove the fence twice, and the engine core would die.
    """
    connector: Any = getattr(scheduler.connector, "connector_scheduler", None)
    remove = getattr(connector, "_remove_pending_job", None)
    if remove is None:
        return

    def remove_once(job_id: int, block_ids: list[int] | None) -> None:
        remove(job_id, [*dict.fromkeys(block_ids or ())])

    connector._remove_pending_job = remove_once


def without_loading(scheduler: Scheduler, output: SchedulerOutput) -> SchedulerOutput:
    """Return the output of a step. Its list of preempted requests leaves out those that load KV
    cache again.

    vLLM's connector assumes that all transfers of a preempted request are copies to host memory.
    But a request that was preempted by a reset of the prefix cache may begin to load in the next
    step, and the engine core would then die.
    """
    connector: Any = getattr(scheduler.connector, "connector_scheduler", None)
    statuses, jobs = getattr(connector, "_req_status", {}), getattr(connector, "_jobs", {})

    def loads(request_id: str) -> bool:
        status = statuses.get(request_id)
        return status is not None and any(not jobs[job].is_store for job in status.transfer_jobs)

    preempted = output.preempted_req_ids or ()
    if not any(map(loads, preempted)):
        return output
    kept = {request_id for request_id in preempted if not loads(request_id)}
    return replace(output, preempted_req_ids=kept)


def forget_keys(scheduler: Scheduler, request_id: str) -> None:
    """Forget the keys of a request in host memory, because the hashes of its blocks have changed.

    The connector computes the keys of the new hashes when it next handles the request.
    """
    for group in _offload_groups(scheduler, request_id):
        group.offload_keys.clear()
        group.next_stored_chunk_idx = group.num_hit_chunks = 0


def begin_turn(scheduler: Scheduler, session: Request) -> None:
    """Have the offload connector read the blocks of a streaming session anew, because its next turn
    begins.

    vLLM's connector does not know turns, and would store wrong blocks for the session. The last
    token of a turn is replaced by the next input, which changes the hash of its block. And when the
    turn starts, vLLM names all blocks of the session again, and the connector would append them to
    those that it has.
    """
    forget_keys(scheduler, session.request_id)
    for group in _offload_groups(scheduler, session.request_id):
        group.block_ids.clear()


def _offload_groups(scheduler: Scheduler, request_id: str) -> Iterable[Any]:
    """Return what vLLM's offload connector knows of a request's blocks, for each cache group."""
    connector: Any = getattr(scheduler, "connector", None)
    statuses = getattr(getattr(connector, "connector_scheduler", None), "_req_status", {})
    status = statuses.get(request_id)
    return () if status is None else status.group_states


def separates_salts(scheduler: Scheduler) -> bool:
    """Return whether other caches of the scheduler, such as host memory, distinguish blocks by the
    hashes that the prefix cache has for them. vLLM's own connector does; others may not.
    """
    connector = getattr(scheduler, "connector", None)
    return connector is None or type(connector).__name__ == "OffloadingConnector"


def in_prefix_order(
    groups: Sequence[Sequence[OffloadKey]], context: ReqContext
) -> list[OffloadKey]:
    """Return a request's keys, of all cache groups, in the order of its prompt. If vLLM does not
    know the positions of all keys, their order is unchanged.
    """
    return order_request_keys(groups, context)


def keys_of(scheduler: Scheduler, hashes: Sequence[bytes]) -> list[OffloadKey]:
    """Return the keys that blocks with these hashes have in host memory, for all cache groups."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    groups = [manager.kv_cache_group_id for manager in managers]
    return [make_offload_key(value, group) for value in hashes for group in groups]
