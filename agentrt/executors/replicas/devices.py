"""Which GPUs each engine gets, so that none is shared. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from agentrt.errors import ConfigError

_SIZES = {
    "tensor_parallel_size": ("--tensor-parallel-size", "--tensor_parallel_size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "--pipeline_parallel_size", "-pp"),
}


def gpus_each(flags: Sequence[str]) -> int:
    """How many GPUs an engine with these flags of vLLM's takes."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, options in _SIZES.items():
        parser.add_argument(*options, dest=name, type=int, default=1)
    try:
        sizes, _ = parser.parse_known_args(list(flags))
    except argparse.ArgumentError as error:
        raise ConfigError(f"vLLM's options: {error}") from error
    size: int = sizes.tensor_parallel_size * sizes.pipeline_parallel_size
    if size < 1:
        raise ConfigError("vLLM's options: parallel sizes are at least 1")
    return size


def visible_devices(present: int, environment: Mapping[str, str]) -> int:
    """How many of a machine's ``present`` GPUs may be used, as CUDA_VISIBLE_DEVICES has it.

    Raises `ConfigError` for one that is not there.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    missing = [name for name in names if name.isdecimal() and int(name) >= present]
    if missing:
        there = ", ".join(map(str, range(present))) or "none"
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={chosen}: there is no GPU {missing[0]} on this machine, which "
            f"has {there}"
        )
    return len(names)


def assign_devices(visible: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Neighbouring GPUs for each engine, ``sizes`` of them, from ``visible`` in all.

    They are numbers among the visible ones. Raises `ConfigError` where there are too few.
    """
    needed = sum(sizes)
    if needed > visible:
        each = ", ".join(map(str, sizes))
        raise ConfigError(
            f"{len(sizes)} engines need {needed} GPUs ({each}), and {visible} can be used: give "
            "fewer --replicas, a smaller --tensor-parallel-size, or more of CUDA_VISIBLE_DEVICES"
        )
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [tuple(range(at, at + size)) for at, size in zip(starts, sizes, strict=True)]
