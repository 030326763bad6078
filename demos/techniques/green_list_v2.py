"""The logits processor of `watermark.py` for vLLM's model runner V2, which runs on GPUs. It
processes all calls of a step at once, on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext, LogitsProcessor

from watermark import is_green, secret_of


class GreenList(LogitsProcessor):
    """A call's ``key`` decides which tokens are green; ``delta`` is added to their logits."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        slots, device = req_states.max_num_reqs, req_states.device
        self._deltas = torch.zeros(slots, device=device)
        self._secrets = torch.zeros(slots, dtype=torch.int64, device=device)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        given = (sampling_params.extra_args or {}).get("GreenList")
        self._deltas[req_idx] = given["delta"] if given else 0.0
        self._secrets[req_idx] = secret_of(given["key"]) if given else 0
        return given is not None

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.expanded_idx_mapping.long()
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        previous = ctx.input_ids[: len(slots), None].long()
        green = is_green(previous, tokens, self._secrets[slots, None])
        return logits.add_(self._deltas[slots, None] * green)
