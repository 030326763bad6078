"""The runtime: the one async shell, which carries programs' calls to an engine and back."""

from __future__ import annotations

from agentrt.runtime.runtime import Runtime

__all__ = ["Runtime"]
