"""Host memory to which a virtual engine offloads its KV cache, with copies that take time.

vLLM's own `OffloadingConnector` decides what is stored, loaded and evicted. Its scheduler part and
its worker part run unchanged. Only the code that would copy bytes is replaced by `Link`, which
computes when a copy ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.outputs import KVConnectorOutput

from agentrt.errors import InvariantError
from agentrt.lab.engine.headless import HeadlessEngine
from agentrt.lab.engine.step_time import StepWork

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig
    from vllm.v1.kv_offload.config import OffloadingConfig

    from agentrt.lab.engine.host_memory import HostMemory

_BLOCKS = "agentrt_host_blocks"
LOAD, STORE = "load", "store"


class HostSpec(CPUOffloadingSpec):
    """vLLM's specification of host memory, with the size in blocks instead of bytes."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        self.num_chunks = int(self.extra_config[_BLOCKS])

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        raise InvariantError("vLLM asked for an offloading worker; a virtual engine has its own")


def transfer_config(blocks: int, extra: Mapping[str, Any]) -> KVTransferConfig:
    """Return vLLM's settings for host memory of ``blocks`` blocks of the KV cache.

    ``extra`` are further settings of the connector.
    """
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=OffloadingConnector.__name__,
        kv_role="kv_both",
        kv_connector_extra_config={
            "spec_name": HostSpec.__name__,
            "spec_module_path": HostSpec.__module__,
            "cpu_bytes_to_use": 1,  # vLLM requires a size in bytes, and `HostSpec` replaces it
            _BLOCKS: blocks,
            **extra,
        },
    )


@dataclass(slots=True)
class Copies:
    """The number of copies in one direction, and the number of blocks that were copied."""

    jobs: int = 0
    blocks: int = 0


@dataclass(slots=True)
class Link(OffloadingWorker):
    """The link between the KV cache and host memory, in virtual time.

    In each direction, copies use the link one after the other, in the order in which they were
    submitted. The two directions do not slow each other down. ``now`` is the time in seconds, which
    the engine sets.
    """

    memory: HostMemory
    block_size: int
    now: float = 0.0
    waited_s: float = 0.0
    """Seconds for which steps waited for copies, because the steps were about to overwrite the
    copied blocks.
    """
    copies: dict[str, Copies] = field(default_factory=lambda: {LOAD: Copies(), STORE: Copies()})
    _step_s: float = 0.0
    _free_at: dict[str, float] = field(default_factory=lambda: {LOAD: 0.0, STORE: 0.0})
    _ends: dict[int, float] = field(default_factory=dict)

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._submit(STORE, job_id, len(src_spec.block_ids), self.memory.store_step_s)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(LOAD, job_id, len(dst_spec.block_ids), self.memory.load_step_s)

    def _submit(self, direction: str, job_id: int, blocks: int, step_s: float) -> bool:
        used_s = blocks * self.block_size * self.memory.token_s
        free_at = max(self.now, self._free_at[direction]) + used_s
        self._free_at[direction] = free_at
        self._ends[job_id] = free_at + self.memory.latency_s
        self._step_s += blocks * self.block_size * step_s
        self.copies[direction].jobs += 1
        self.copies[direction].blocks += blocks
        return True

    def get_finished(self) -> list[TransferResult]:
        ended = [job_id for job_id, end in self._ends.items() if end <= self.now]
        for job_id in ended:
            del self._ends[job_id]
        return [TransferResult(job_id, success=True) for job_id in ended]

    def wait(self, job_ids: set[int]) -> None:
        """Wait until these copies have ended."""
        until = max((self._ends.get(job_id, self.now) for job_id in job_ids), default=self.now)
        self.waited_s += max(0.0, until - self.now)
        self.now = max(self.now, until)

    @property
    def next_end(self) -> float | None:
        """The moment at which the next copy ends; None if no copy is in flight."""
        return min(self._ends.values(), default=None)

    def take_step_s(self) -> float:
        """Return the seconds by which a step becomes longer, because of the copies that were
        submitted since the last call of this method.
        """
        step_s, self._step_s = self._step_s, 0.0
        return step_s


class HostEngine(HeadlessEngine):
    """A `HeadlessEngine` whose scheduler offloads KV cache to host memory over a `Link`.

    `with_host` makes such an engine. A step in which no call runs lasts until the next copy ends,
    because vLLM polls its copies while waiting calls need them.
    """

    link: Link
    _worker: OffloadingConnector
    _results: dict[int, KVConnectorOutput]
    _polls = True

    def settle(self) -> None:
        """Submit the last stores, and note the copies that have ended, as vLLM does when no call is
        left. The clock does not advance.
        """
        self._polls = False
        try:
            for _ in range(3):  # to schedule a store, to submit it, and to note its end
                self.step()
        finally:
            self._polls = True

    def _ends_at(self, output: Any, starts_at: float, work: StepWork) -> float:
        worker, link = self._worker, self.link
        link.now = max(link.now, starts_at)
        worker.handle_preemptions(output.kv_connector_metadata)
        worker.bind_connector_metadata(output.kv_connector_metadata)
        worker.start_load_kv(None)  # the forward context is not used
        worker.wait_for_save()
        step_s = link.take_step_s()
        if not work.empty:
            link.now += self.step_s(work) + step_s
        elif self._polls and link.next_end is not None:
            link.now = max(link.now, link.next_end)
        sent, received = worker.get_finished(output.finished_req_ids)
        self._results[id(output)] = KVConnectorOutput(
            finished_sending=sent,
            finished_recving=received,
            kv_connector_worker_meta=worker.build_connector_worker_meta(),
        )
        worker.clear_connector_metadata()
        return link.now

    def _beside_tokens(self, output: Any) -> dict[str, Any]:
        return {"kv_connector_output": self._results.pop(id(output))}


def with_host(scheduler: Any, memory: HostMemory, **engine: Any) -> HostEngine:
    """Return an engine for a scheduler whose configuration contains `transfer_config`.

    ``engine`` are the other arguments of `HeadlessEngine`.
    """
    made = HostEngine(scheduler, **engine)
    made.link = Link(memory, scheduler.block_size)
    made._worker, made._results = worker_half(scheduler, made.link), {}
    return made


def worker_half(scheduler: Any, copies: OffloadingWorker) -> OffloadingConnector:
    """Return the worker's half of vLLM's connector for a scheduler. ``copies`` makes the copies."""
    worker = KVConnectorFactory.create_connector(
        scheduler.vllm_config, KVConnectorRole.WORKER, scheduler.kv_cache_config
    )
    assert isinstance(worker, OffloadingConnector)
    assert worker.connector_worker is not None
    worker.connector_worker.worker = copies
    return worker
