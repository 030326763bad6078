"""The logits processor of `watermark.py`, which favours green tokens in vLLM's model runner V1.

The token before decides which tokens are green. The processor reads it from the output and keeps
no state, so a call that was preempted resumes as if it had not been preempted.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from watermark import is_green, secret_of


class GreenList(AdapterLogitsProcessor):
    """A call's ``key`` decides which tokens are green; ``delta`` is added to their logits."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        given = (params.extra_args or {}).get("GreenList")
        if given is None:
            return None
        delta, secret = given["delta"], secret_of(given["key"])

        def favour(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
            previous = output[-1] if output else prompt[-1]
            tokens = torch.arange(logits.shape[-1], device=logits.device)
            return logits + delta * is_green(previous, tokens, secret)

        return favour
