"""Estimates how much memory an engine needs on a CPU, before it is started."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentrt.errors import EngineStartError
from agentrt.executors.vllm.options import EngineOptions
from agentrt.files import expanded

_PROCESS = 900 << 20
"""Bytes that an engine core needs in addition to weights and KV cache: vLLM and torch (measured).
"""

_CACHE = 1 << 30
_DEFAULT_WEIGHTS = 270 << 20
_WIDER = 2
"""Factor for weights with ``--dtype float32``: 32 bits instead of 16."""


def footprint(options: EngineOptions) -> int:
    """Return the estimated memory of an engine with ``options``, in bytes.

    The weights of a model that ``options`` name by its hub name are not counted.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    cache = ("--kv-cache-memory-bytes", "--kv_cache_memory_bytes")
    parser.add_argument(*cache, dest="cache", default=str(_CACHE))
    parser.add_argument("--dtype", default="auto")
    try:
        flags, _ = parser.parse_known_args(list(options.flags))
    except argparse.ArgumentError:  # vLLM's own parser will report the error
        return _PROCESS
    size = int(flags.cache) if flags.cache.isdecimal() else _CACHE
    wider = _WIDER if flags.dtype in ("float32", "float") else 1
    return _PROCESS + size + _weights(options.model) * wider


def _weights(model: str | None) -> int:
    if model is None:
        return _DEFAULT_WEIGHTS
    try:
        return sum(file.stat().st_size for file in expanded(model).glob("*.safetensors"))
    except OSError:  # the name is too long for a folder, or the folder cannot be read
        return 0


def check_memory(needs: Sequence[int], available: int) -> None:
    """Raise `EngineStartError` if engines need more memory than is ``available``.

    ``needs`` has the bytes of each engine.
    """
    if sum(needs) > available:
        raise EngineStartError(
            f"{len(needs)} engines need about {_gib(sum(needs))} of memory, but only "
            f"{_gib(available)} is free; use fewer --replicas, or a smaller KV cache with "
            "-- --kv-cache-memory-bytes N"
        )


def _gib(size: int) -> str:
    return f"{max(0, size) / 2**30:.1f} GiB"
