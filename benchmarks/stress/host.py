"""Host memory behind the stress engine's KV cache: vLLM's own connector, with copies that take a
random number of steps and may fail.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.outputs import KVConnectorOutput

from agentrt.executors.vllm.options import HOST_TIER
from agentrt.lab.engine.host import transfer_config, worker_half
from benchmarks.stress.faults import Violation
from benchmarks.stress.runner import ModelRunner

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig

    from benchmarks.stress.plans import EnginePlan

_ENDS, _EARLY, _FAILS = 0.1, 0.5, 0.2
"""Three probabilities: that a copy ends in a step; that a copy moves its content when it begins,
and not when it ends; and that an ended load has failed.
"""


@dataclass(slots=True)
class _Copy:
    """A copy in flight: from blocks to chunks if it is a ``store``, else from chunks to blocks.

    ``moved`` is True if the content has arrived, and ``fails`` is True if the content will never
    arrive.
    """

    store: bool
    blocks: list[int]
    chunks: list[int]
    moved: bool = False
    fails: bool = False


@dataclass(slots=True)
class Copies(OffloadingWorker):
    """A worker that copies blocks of a `ModelRunner`, in a random number of steps.

    A load first clears its blocks. The content arrives at the end of the load or earlier. With
    ``lossy``, loads may fail: their content never arrives.
    """

    runner: ModelRunner
    rng: random.Random
    lossy: bool
    in_flight: dict[int, _Copy] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)
    """The failed loads that have ended since the engine last asked for them."""
    host: dict[int, list[int] | None] = field(default_factory=dict)

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        self._begin(job_id, True, src_spec, dst_spec)
        return True

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        self._begin(job_id, False, dst_spec, src_spec)
        return True

    def _begin(self, job_id: int, store: bool, engine: GPULoadStoreSpec, host: Any) -> None:
        blocks, chunks = list(map(int, engine.block_ids)), list(map(int, host.block_ids))
        if len(blocks) != len(chunks):
            raise Violation("copies", f"{len(blocks)} blocks and {len(chunks)} chunks of a copy")
        copy = _Copy(store, blocks, chunks)
        if not store:
            copy.fails = self.lossy and self.rng.random() < _FAILS
            for block in blocks:
                self.runner.memory[block] = None
        if self.rng.random() < _EARLY:
            self._move(copy)
        self.in_flight[job_id] = copy

    def _move(self, copy: _Copy) -> None:
        if copy.moved or copy.fails:
            return
        copy.moved = True
        memory, host = self.runner.memory, self.host
        for block, chunk in zip(copy.blocks, copy.chunks, strict=True):
            if copy.store:
                held = memory[block]
                host[chunk] = None if held is None else list(held)
            else:
                held = host.get(chunk)
                memory[block] = None if held is None else list(held)

    def get_finished(self) -> list[TransferResult]:
        ended = [job_id for job_id in self.in_flight if self.rng.random() < _ENDS]
        for job_id in ended:
            copy = self.in_flight.pop(job_id)
            self._move(copy)
            if copy.fails:
                self.failed.add(job_id)
        return [TransferResult(job_id, success=True) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        for job_id in job_ids & self.in_flight.keys():
            self._move(self.in_flight[job_id])


@dataclass(slots=True)
class HostSide:
    """The worker's half of vLLM's connector, with counts of its work. ``loads`` and ``stores`` are
    the numbers of copies. ``failed`` is the number of loads that failed, ``aborted`` the number of
    calls that ended while they were loading, and ``full`` the number of stores for which host
    memory had no room.
    """

    connector: OffloadingConnector
    copies: Copies
    loads: int = 0
    stores: int = 0
    failed: int = 0
    aborted: int = 0
    full: int = 0

    def before(self, output: Any) -> None:
        """Begin the copies of a step, before its model runs."""
        metadata = output.kv_connector_metadata
        self.loads += len(metadata.load_jobs)
        self.stores += len(metadata.store_jobs)
        self.connector.handle_preemptions(metadata)
        self.connector.bind_connector_metadata(metadata)
        self.connector.start_load_kv(None)  # the forward context is not used

    def after(self, output: Any, requests: dict[str, Any]) -> KVConnectorOutput:
        """After the model has run for a step, return the requests whose copies have ended, and the
        requests whose loads have failed.
        """
        connector, worker = self.connector, self.connector.connector_worker
        assert worker is not None
        connector.wait_for_save()
        loading = dict(worker._load_jobs)
        sent, received = connector.get_finished(output.finished_req_ids)
        lost = {loading[job_id] for job_id in self.copies.failed}
        self.copies.failed.clear()
        self.failed += len(lost)
        self.aborted += sum(requests[name].is_finished() for name in received or ())
        for name in lost:
            # Such a request must not load again: vLLM would reserve blocks for the second load in
            # addition to the request's own blocks, and would wait for ever if twice the number of
            # blocks is not available.
            requests[name].skip_reading_prefix_cache = True
        result = KVConnectorOutput(
            finished_sending=sent,
            finished_recving=received,
            failed_recving=lost,
            kv_connector_worker_meta=connector.build_connector_worker_meta(),
        )
        connector.clear_connector_metadata()
        return result

    @property
    def copying(self) -> bool:
        """Whether copies are in flight."""
        return bool(self.copies.in_flight)


def host_config(plan: EnginePlan, retention: str) -> KVTransferConfig:
    """Return vLLM's settings for the host memory of a plan, made by the same code as in agentrt."""
    config = transfer_config(plan.host, {} if retention == "lru" else HOST_TIER)
    config.kv_load_failure_policy = plan.host_fails or "fail"
    return config


def host_side(scheduler: Any, plan: EnginePlan, runner: ModelRunner, seed: int) -> HostSide:
    """Make the worker's half for a scheduler that was made with `host_config`."""
    lossy = plan.host_fails is not None
    copies = Copies(runner, random.Random(f"copies {seed}"), lossy)
    side = HostSide(worker_half(scheduler, copies), copies)
    manager = scheduler.connector.connector_scheduler.manager
    prepare = manager.prepare_store

    def counted(*args: Any, **kwargs: Any) -> Any:
        prepared = prepare(*args, **kwargs)
        side.full += prepared is None
        return prepared

    manager.prepare_store = counted
    return side


def left_on_host(scheduler: Any) -> dict[str, int]:
    """Count the objects that vLLM's connector still holds for calls: copies, requests, and chunks
    in use.
    """
    half = scheduler.connector.connector_scheduler
    manager = half.manager
    free = manager._get_num_free_chunks() + manager._num_evictable_cache_chunks
    return {
        "copies": len(half._jobs),
        "requests of the connector": len(half._req_status),
        "blocks with a copy": len(half._block_id_to_pending_jobs),
        "chunks being loaded": len(half._chunks_being_loaded or ()),
        "chunks in use": manager._num_chunks - free,
        "owners of calls": len(getattr(manager._policy, "_calls", ())),
    }
