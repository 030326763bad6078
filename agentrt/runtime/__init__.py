"""The runtime: the asynchronous layer that carries the calls of programs to an engine and back."""

from __future__ import annotations

from agentrt.runtime.runtime import Runtime

__all__ = ["Runtime"]
