"""The name of the hardware that computes."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def hardware() -> str:
    """Return the name of the GPU. Without a GPU, return the name of the processor and the number of
    cores.
    """
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores"


def processor() -> str:
    """Return the name of the processor."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.split(":")[1].strip() for line in lines if "model name" in line), name)
    return name
