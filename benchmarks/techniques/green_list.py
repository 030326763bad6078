"""A watermark for ``benchmarks techniques``: a logits processor of vLLM's model runner V1."""

from __future__ import annotations

from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class GreenList(AdapterLogitsProcessor):
    """A processor that adds ``delta`` to the logit of every second token, for requests with the
    setting ``GreenList``.
    """

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        settings = (params.extra_args or {}).get("GreenList")
        if settings is None:
            return None

        def favour(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            logits[::2] += settings["delta"]
            return logits

        return favour
