"""Sampling in the model runner: works around three errors of vLLM on a CPU, gives the model's own
log probabilities for outputs that a grammar constrains, and knows the interface of logits
processors.

**Seeds** (0.32, 0.33). When a prompt is computed in several steps, vLLM samples a token at the end
of each step, and discards all samples but the last. It then resets the random generator of a seeded
request by setting the generator's offset. PyTorch has offsets only for GPU generators, and raises
an error on a CPU, so that the engine dies. The runtime sets a seed for every sampled call, so every
long prompt would cause this error.

**Drafts** (seen in 0.32). To accept or reject the tokens of a draft model, vLLM repeats the
temperature, top-k and top-p of each request for each of its drafts. Its replacement for the Triton
kernel writes the repeated values to a copy, so that sampling reads memory that was never written,
and accepts tokens that the model would not write.

**Scores with adapters** (seen in 0.32). For the log probabilities of a prompt, vLLM computes the
logits of many tokens of one request. An engine with LoRA adapters adds the adapter's part to the
logits. On a CPU, it takes the adapters of the requests of the batch, one for each row, and raises
an error, so that the engine dies.

**Log probabilities.** vLLM masks the tokens that a grammar does not allow before it computes log
probabilities, so that they are relative to the allowed tokens. Training needs the log probabilities
that a forward pass of the model gives. The mask only removes terms from the normalizer of a row of
logits, so the two kinds of log probabilities differ by one number for each row.

**Logits processors.** The interface of processors differs between the model runners V1 and V2. An
engine's client asks for it before vLLM starts the core. The rest of this module is used in the
engine core.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def mend_sampling() -> None:
    """On a CPU, make the model runner reset generators to their state before a discarded sample,
    repeat the values of requests for their drafts, and score prompts with their own adapter.

    Call it in the engine core before its first step. On other devices it does nothing.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    sampler: Any = sys.modules.get("vllm.v1.sample.rejection_sampler")
    if sampler is not None:
        sampler.expand_batch_to_tokens = _repeated
    _take_samples_back_by_state()
    _score_with_own_adapter()


def _repeated(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    """Return a tensor of ``num_tokens`` numbers: each number of ``x`` as often as its request has
    drafts. The drafts of a request end before its number in ``cu_num_tokens``. Numbers that are
    ``replace_from`` become ``replace_to``. The parameters have vLLM's names, because vLLM may pass
    them by name.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    repeated = x.repeat_interleave(counts, output_size=num_tokens)
    return repeated.masked_fill(repeated == replace_from, replace_to)


def _take_samples_back_by_state() -> None:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if getattr(CPUModelRunner, "_samples_by_state", False):
        return
    sample, keep_books = CPUModelRunner._sample, CPUModelRunner._bookkeeping_sync

    def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = [(generator, generator.get_state()) for generator in _to_take_back(self)]
        sampled = sample(self, *args, **kwargs)
        for generator, state in before:
            generator.set_state(state)
        return sampled

    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        # `_sample` has reset the generators already: hide them from vLLM's own reset.
        generators, batch.generators = batch.generators, {}
        try:
            return keep_books(self, *args, **kwargs)
        finally:
            batch.generators = generators

    CPUModelRunner._sample = _sample
    CPUModelRunner._bookkeeping_sync = _bookkeeping_sync
    CPUModelRunner._samples_by_state = True


def _to_take_back(runner: Any) -> list[Any]:
    """Return the generators of requests whose samples in this step are discarded."""
    batch = runner.input_batch
    discarded = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0]
    generators = (batch.generators.get(int(index)) for index in discarded)
    return [generator for generator in generators if generator is not None]


def _score_with_own_adapter() -> None:
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if hasattr(CPUModelRunner, "_agentrt_scored"):
        return
    scores, add = CPUModelRunner._get_prompt_logprobs_dict, PunicaWrapperCPU.add_lora_logits
    scored: list[int] = []
    """The first token, in the step, of the request whose prompt is scored; else empty."""

    @wraps(scores)
    def _get_prompt_logprobs_dict(self: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        wanted, results = self.num_prompt_logprobs, dict[str, Any]()
        if self.lora_config is None or not wanted:
            return dict(scores(self, *args, **kwargs))
        for request, number in [*wanted.items()]:
            self.num_prompt_logprobs = {request: number}
            index = self.input_batch.req_id_to_index.get(request)
            if index is not None:
                scored.append(self.query_start_loc.np[index].item())
            try:
                results |= scores(self, *args, **kwargs)
                if not self.num_prompt_logprobs:  # the whole prompt is scored
                    del wanted[request]
            finally:
                self.num_prompt_logprobs = wanted
                scored.clear()
        return results

    @wraps(add)
    def add_lora_logits(self: Any, y: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if not scored:
            return add(self, y, x, *args, **kwargs)
        of_batch, count, rows = self._sampler_indices, self.indices_len[1], x.shape[0]
        own = self.token_lora_indices[scored[0] : scored[0] + 1]
        self._sampler_indices, self.indices_len[1] = own.expand(rows), rows
        try:
            return add(self, y, x, *args, **kwargs)
        finally:
            self._sampler_indices, self.indices_len[1] = of_batch, count

    CPUModelRunner._get_prompt_logprobs_dict = _get_prompt_logprobs_dict
    PunicaWrapperCPU.add_lora_logits = add_lora_logits
    CPUModelRunner._agentrt_scored = scored


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


# -- logits processors ---------------------------------------------------------------------


def runner_of(config: VllmConfig) -> str:
    """Return which of vLLM's model runners an engine has, ``V1`` or ``V2``. The two have different
    interfaces for logits processors.
    """
    return "V2" if config.use_v2_model_runner else "V1"


def interface_of(runner: str) -> type[Any]:
    """Return the base class for logits processors of a model runner, ``V1`` or ``V2``."""
    from vllm.v1.sample.logits_processor import LogitsProcessor
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as LogitsProcessorV2

    return LogitsProcessorV2 if runner == "V2" else LogitsProcessor


def takes_none(config: VllmConfig) -> str:
    """Return the reason why an engine does not support logits processors, or "" if it supports
    them.
    """
    if config.model_config.runner_type == "pooling":
        return "its model computes embeddings or scores"
    if config.speculative_config is not None and runner_of(config) == "V1":
        return "vLLM's model runner V1 takes no logits processors with speculative decoding"
    return ""
