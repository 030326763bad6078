"""Assigns GPUs to engines so that no two engines share a GPU."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from agentrt.errors import ConfigError

_SIZES = {
    "tensor_parallel_size": ("--tensor-parallel-size", "--tensor_parallel_size", "-tp"),
    "pipeline_parallel_size": ("--pipeline-parallel-size", "--pipeline_parallel_size", "-pp"),
    "prefill_context_parallel_size": (
        *("--prefill-context-parallel-size", "--prefill_context_parallel_size", "-pcp"),
    ),
}
"""vLLM's options whose product is the number of an engine's GPUs."""


def gpus_each(flags: Sequence[str]) -> int:
    """Return how many GPUs an engine with these vLLM flags needs.

    Raises `ConfigError` for invalid sizes of the parallelism; other flags are not checked.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, options in _SIZES.items():
        parser.add_argument(*options, dest=name, type=int, default=1)
    try:
        sizes, _ = parser.parse_known_args(list(flags))
    except argparse.ArgumentError as error:
        raise ConfigError(f"vLLM's options: {error}") from error
    for name, options in _SIZES.items():
        if (size := getattr(sizes, name)) < 1:
            raise ConfigError(f"vLLM's options: {options[0]} is {size}, but must be at least 1")
    return math.prod(getattr(sizes, name) for name in _SIZES)


def visible_devices(present: int, environment: Mapping[str, str]) -> int:
    """Return how many of a machine's ``present`` GPUs CUDA_VISIBLE_DEVICES allows.

    Raises `ConfigError` if the variable has the number of a GPU that the machine does not have.
    GPUs that are named in another way, such as by a UUID, are counted without a check. As in CUDA,
    a negative number hides itself and all that follow.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return present
    listed = (name.strip() for name in chosen.split(",") if name.strip())
    names = [*takewhile(lambda name: not name.startswith("-"), listed)]
    missing = [name for name in names if name.isdecimal() and int(name) >= present]
    if missing:
        numbers = ", ".join(map(str, range(present))) or "none"
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={chosen}: this machine has no GPU {missing[0]}; "
            f"available: {numbers}"
        )
    return len(names)


def assign_devices(visible: int, sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return consecutive GPUs for each engine, as indices of the ``visible`` GPUs.

    ``sizes`` has the number of GPUs of each engine. Raises `ConfigError` if there are too few.
    """
    needed = sum(sizes)
    if needed > visible:
        each = ", ".join(map(str, sizes))
        raise ConfigError(
            f"{len(sizes)} engines need {needed} GPUs ({each}), but only {visible} can be used; "
            "use fewer --replicas or a smaller --tensor-parallel-size, or name more GPUs in "
            "CUDA_VISIBLE_DEVICES"
        )
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [tuple(range(at, at + size)) for at, size in zip(starts, sizes, strict=True)]
