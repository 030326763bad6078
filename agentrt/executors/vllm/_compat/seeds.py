"""Seeded sampling on a CPU: vLLM takes a sample back by a counter that only GPUs' generators have.

A prompt that is computed in several steps is sampled at the end of each, and all samples but the
last are thrown away. vLLM then sets the generator of a seeded request back by its offset, which
PyTorch refuses on a CPU: the engine dies (0.32, 0.33). The runtime draws a seed for every sampled
call, so that here each long prompt would meet it.
"""

from __future__ import annotations

from typing import Any


def take_samples_back_by_state() -> None:
    """On a CPU, let the model runner set generators back to their state before the sample.

    To be called in the engine core before its first step. Elsewhere it does nothing.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if getattr(CPUModelRunner, "_samples_by_state", False):
        return
    sample, keep_books = CPUModelRunner._sample, CPUModelRunner._bookkeeping_sync

    def _sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = [(one, one.get_state()) for one in _to_take_back(self)]
        sampled = sample(self, *args, **kwargs)
        for generator, state in before:
            generator.set_state(state)
        return sampled

    def _bookkeeping_sync(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}  # they are set back already
        try:
            return keep_books(self, *args, **kwargs)
        finally:
            batch.generators = generators

    CPUModelRunner._sample = _sample
    CPUModelRunner._bookkeeping_sync = _bookkeeping_sync
    CPUModelRunner._samples_by_state = True


def _to_take_back(runner: Any) -> list[Any]:
    """The generators of requests whose prompt is not computed to its end in this step."""
    batch = runner.input_batch
    discarded = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0]
    found = (batch.generators.get(int(index)) for index in discarded)
    return [generator for generator in found if generator is not None]
