"""What a program's author writes with: the decorators, and the context that a program gets.

`definition` has the decorators and the `Program` that they make, `context` what a program acts
through, and `options` what it may say with an LLM call. Tools are in `agentrt.interrupts`.
"""

from __future__ import annotations

from agentrt.program.context import Context, Emitter
from agentrt.program.definition import Program, node, program

__all__ = ["Context", "Emitter", "Program", "node", "program"]
