"""The size of the host memory to which a virtual engine offloads, and the cost of copies."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Host memory for blocks that the GPU's KV cache evicts. Times are in seconds.

    ``size`` is the size of the host memory as a multiple of the KV cache. A copy of one token
    occupies one direction of the link for ``token_s``. The copy ends ``latency_s`` after its last
    token has left the link. Each token whose copy begins in a step makes this step longer, by
    ``load_step_s`` or ``store_step_s``, because the engine must submit the copies, and the copies
    use the bandwidth of the GPU's memory.

    The defaults are for an 8B model (128 KiB per token) on an H100 or H200 with vLLM 0.19. The
    costs for steps were fitted to two published runs (``benchmarks.external``). The bandwidth is 33
    GB/s in each direction, half of the nominal bandwidth of PCIe 5.0 with 16 lanes. The published
    runs determine neither the bandwidth nor the latency: with half of this bandwidth, the run that
    loads the most tokens takes only 0.5% longer.
    """

    size: float
    token_s: float = 4e-6
    latency_s: float = 1e-3
    load_step_s: float = 3.4e-6
    store_step_s: float = 2.4e-6

    def __post_init__(self) -> None:
        if not 0 < self.size < math.inf:
            raise ConfigError(
                f"host memory of {self.size:g} times the KV cache; give a finite multiple above 0"
            )
        for cost in (self.token_s, self.latency_s, self.load_step_s, self.store_step_s):
            if not 0 <= cost < math.inf:
                raise ConfigError(
                    "the costs of copies to host memory must be finite and at least 0 seconds; one "
                    f"is {cost:g}"
                )

    def blocks(self, kv_blocks: int) -> int:
        """Return the size in blocks, for a KV cache of ``kv_blocks`` blocks."""
        return max(1, round(self.size * kv_blocks))
