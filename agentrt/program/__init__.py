"""The API for authors of programs: the decorators, and the context that a program gets.

`definition` has the decorators and the class `Program`, `context` the class `Context`, and
`options` the options of an LLM call. Tools are in `agentrt.interrupts`.
"""

from __future__ import annotations

from agentrt.program.context import Context, Emitter
from agentrt.program.definition import Program, node, program

__all__ = ["Context", "Emitter", "Program", "node", "program"]
