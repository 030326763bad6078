"""How much memory an engine takes on a CPU, about, before it is started."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import psutil

from agentrt.errors import EngineStartError
from agentrt.executors.vllm.options import EngineOptions
from agentrt.files import expanded

_PROCESS = 900 << 20
"""What an engine core takes beside weights and KV cache: vLLM and torch (measured)."""

_CACHE = 1 << 30
_DEFAULT_WEIGHTS = 270 << 20
_WIDER = 2
"""Weights in 16 bits become 32 with ``--dtype float32``."""


def footprint(options: EngineOptions) -> int:
    """Bytes. The weights of a model that is not on this machine yet count as nothing."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    cache = ("--kv-cache-memory-bytes", "--kv_cache_memory_bytes")
    parser.add_argument(*cache, dest="cache", default=str(_CACHE))
    parser.add_argument("--dtype", default="auto")
    try:
        given, _ = parser.parse_known_args(list(options.flags))
    except argparse.ArgumentError:  # vLLM will say what is wrong
        return _PROCESS
    size = int(given.cache) if given.cache.isdecimal() else _CACHE
    wider = _WIDER if given.dtype in ("float32", "float") else 1
    return _PROCESS + size + _weights(options.model) * wider


def _weights(model: str | None) -> int:
    if model is None:
        return _DEFAULT_WEIGHTS
    folder = expanded(model)
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def check_memory(needs: Sequence[int], available: int) -> None:
    """Raise `EngineStartError` unless engines that take ``needs`` bytes fit."""
    if sum(needs) > available:
        raise EngineStartError(
            f"{len(needs)} engines take about {_gib(sum(needs))} of memory, and {_gib(available)} "
            "is free: give fewer --replicas, or a smaller cache with "
            "-- --kv-cache-memory-bytes N"
        )


def free_memory() -> int:
    """What this machine can still give (bytes), within the limits of its control group."""
    return min(int(psutil.virtual_memory().available), _left_in_group(Path("/sys/fs/cgroup")))


def _left_in_group(group: Path) -> int:
    """What the control group's limit leaves. Cached files are counted as used, but go first."""
    try:
        limit = (group / "memory.max").read_text(encoding="ascii").strip()
        used = int((group / "memory.current").read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # no control group, or one of the old kind
        return 1 << 62
    files = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    return 1 << 62 if limit == "max" else int(limit) - used + files


def _gib(size: int) -> str:
    return f"{max(0, size) / 2**30:.1f} GiB"
