"""Log probabilities of the model itself for outputs that a grammar constrains.

vLLM masks the tokens that a grammar does not allow before it computes log probabilities, so that
they are relative to the allowed tokens. Training needs the log probabilities that a forward pass of
the model gives. The mask only removes terms from the normalizer of a row of logits, so the two
kinds of log probabilities differ by one number for each row.
"""

from __future__ import annotations

import sys
from typing import Any

_RUNNER = "vllm.v1.worker.gpu_model_runner"
"""The module of vLLM's model runner V1, which the runner for CPUs extends."""


def correct_constrained_logprobs(wanted: str) -> None:
    """Make the model runner of this process correct the log probabilities of requests whose
    ``extra_args`` have the key ``wanted``.

    Call it in the engine core before its first step. It does nothing if the runner is in another
    process, as with several GPUs, or is vLLM's model runner V2. Steps with speculative tokens are
    not corrected.
    """
    module: Any = sys.modules.get(_RUNNER)
    if module is None or hasattr(module, "_agentrt_shifts"):
        return
    runner: Any = module.GPUModelRunner
    apply_mask, sample = module.apply_grammar_bitmask, runner._sample
    shifts: list[Any] = []

    def apply_grammar_bitmask(scheduled: Any, grammar: Any, batch: Any, logits: Any) -> None:
        shifts.clear()
        if not batch.num_logprobs:
            apply_mask(scheduled, grammar, batch, logits)
            return
        of_model = logits.float().logsumexp(-1)
        apply_mask(scheduled, grammar, batch, logits)
        shifts.append(logits.float().logsumexp(-1) - of_model)

    def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        sampled = sample(self, logits, spec_decode_metadata)
        shift = shifts.pop() if shifts else None
        tensors = sampled.logprobs_tensors
        if shift is not None and tensors is not None and spec_decode_metadata is None:
            for row, request in enumerate(self.input_batch.req_ids):
                if wanted in (self.requests[request].sampling_params.extra_args or {}):
                    tensors.logprobs[row] += shift[row]
        return sampled

    module.apply_grammar_bitmask = apply_grammar_bitmask
    runner._sample = _sample
    module._agentrt_shifts = shifts
