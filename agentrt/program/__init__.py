"""What a program's author writes with: the decorators, and the context that a program gets."""

from __future__ import annotations

from agentrt.program.program import Context, Emitter, Program, node, program

__all__ = ["Context", "Emitter", "Program", "node", "program"]
