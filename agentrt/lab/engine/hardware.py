"""What computes here, in words."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path


def hardware() -> str:
    """One line about what computes: the GPU, or else the processor and its cores."""
    import torch

    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{processor()}, {len(os.sched_getaffinity(0))} cores"


def processor() -> str:
    """The processor's name."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((line.split(":")[1].strip() for line in lines if "model name" in line), name)
    return name
