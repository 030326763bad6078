"""vLLM's offloading on its CPU build: its own connector, manager and policies, with plain copies.

vLLM's own worker copies on CUDA streams. vLLM loads the spec by ``spec_name`` and
``spec_module_path`` in the connector's extra config.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class CopyingSpec(CPUOffloadingSpec):
    """vLLM's spec for host memory, with a worker that needs no GPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        return CopyingWorker(kv_caches, self.num_chunks)


BLOCK = 32
BLOCK_BYTES = 2 * 2 * 32 * 4 * BLOCK
"""Keys and values of the tiny model's two layers, 32 floats each."""


def copying(chunks: int) -> dict[str, Any]:
    """The connector's settings for a host memory of so many blocks, behind the tiny model."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": chunks * BLOCK_BYTES,
            "spec_name": CopyingSpec.__name__,
            "spec_module_path": CopyingSpec.__module__,
        },
    }


class CopyingWorker(OffloadingWorker):
    """Copies blocks when it is told to; a chunk is one block."""

    def __init__(self, kv_caches: CanonicalKVCaches, chunks: int) -> None:
        self._engine = [one.tensor for one in kv_caches.tensors]
        self._host = [torch.empty(chunks, one.shape[1], dtype=one.dtype) for one in self._engine]
        self._done: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._copy(job_id, self._engine, src_spec, self._host, dst_spec)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._copy(job_id, self._host, src_spec, self._engine, dst_spec)

    def _copy(
        self,
        job_id: int,
        source: list[torch.Tensor],
        taken: Any,
        target: list[torch.Tensor],
        put: Any,
    ) -> bool:
        assert len(taken.block_ids) == len(put.block_ids)
        for one, other in zip(source, target, strict=True):
            other[put.block_ids.tolist()] = one[taken.block_ids.tolist()]
        self._done.append(TransferResult(job_id, success=True))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """All copies are done."""
