"""Host memory to which a GPU's KV cache is offloaded: how much of the machine's memory an engine
takes.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from agentrt.executors.vllm.memory import free_memory

_GIB = 1 << 30
_KEPT_SHARE, _KEPT_LEAST = 0.25, 4 * _GIB
"""The share of the free memory that is left to everything else, and its minimum in bytes. This
memory is left for weights that are being loaded, programs, tools, and the system's cache of files.
"""
_SHARED = Path("/dev/shm")
_KEPT_SHARED = _GIB // 2
"""Bytes that are left in shared memory, which vLLM's processes use for messages."""


def gpu_gib(count: int) -> float:
    """Return the memory of ``count`` of this machine's GPUs in GiB; 0 if there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    return float(count * torch.cuda.get_device_properties(0).total_memory / _GIB)


@dataclass(frozen=True, slots=True)
class HostRoom:
    """The free memory of a machine that engines may use as host memory for KV cache, in bytes.

    ``free`` is the machine's free memory, within the limits of the control group. ``shared`` is the
    room in ``/dev/shm``, where vLLM puts host memory.
    """

    free: int
    shared: int

    @classmethod
    def of_machine(cls) -> HostRoom:
        """Return the room on this machine."""
        shared = shutil.disk_usage(_SHARED).free if _SHARED.is_dir() else 0
        return cls(free_memory(), shared)

    @property
    def _of_free(self) -> int:
        return self.free - max(_KEPT_LEAST, int(_KEPT_SHARE * self.free))

    @property
    def _of_shared(self) -> int:
        return self.shared - _KEPT_SHARED

    def gib(self, engines: int = 1) -> int:
        """Return how many whole GiB each of ``engines`` engines can take."""
        return max(0, min(self._of_free, self._of_shared) // max(1, engines) // _GIB)

    @property
    def is_limited_by_shared_memory(self) -> bool:
        """Whether engines could take more host memory if ``/dev/shm`` were larger."""
        return self._of_shared // _GIB < self._of_free // _GIB

    def useful_gib(self, engines: int, gpu_gib: float) -> int:
        """Return the GiB that each engine takes with ``auto``, or 0 if that is less than the memory
        of its GPUs.

        vLLM stores each block as it is computed. So a host memory that is no larger than the KV
        cache only has blocks that the GPU has, too, and copying them costs time for nothing.
        """
        size = self.gib(engines)
        return size if size >= gpu_gib else 0

    def __str__(self) -> str:
        return f"{self.free / _GIB:.1f} GiB of memory free, {self.shared / _GIB:.1f} in {_SHARED}"

    @property
    def advice(self) -> str:
        """Advice for a machine that has too little room for host memory."""
        if self.is_limited_by_shared_memory:
            size = math.ceil((self._of_free + _KEPT_SHARED) / _GIB)
            return f"enlarge {_SHARED}, such as by docker run --shm-size {size}g"
        return "end other programs, or raise the container's memory limit"
