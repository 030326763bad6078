"""Imported by the process that cores are forked of: what vLLM would do in each of them, done once.

On a CPU vLLM puts its own kernels in the places of Triton's, and looks through all modules for
these places: a quarter of the processor time in which a tiny model's core starts.
"""

from __future__ import annotations

from vllm.platforms import current_platform

current_platform.register_triton_kernel_overrides()
type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
