"""Seeded sampling on a CPU: works around an error of vLLM with prompts that take several steps.

When a prompt is computed in several steps, vLLM samples at the end of each, and discards all
samples but the last. It then resets the generator of a seeded request by its offset. PyTorch has
offsets only for GPU generators, and raises an error on a CPU, so that the engine dies (0.32, 0.33).
The runtime sets a seed for every sampled call, so every long prompt would cause this error.
"""

from __future__ import annotations

from typing import Any


def take_samples_back_by_state() -> None:
    """On a CPU, make the model runner reset generators to their state before a discarded sample.

    Call it in the engine core before its first step. On other devices it does nothing.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
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
