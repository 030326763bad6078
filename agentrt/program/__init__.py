"""The API for authors of programs: the decorators, and the context that a program gets.

The module `definition` has the decorators and the class `Program`, `context` has the class
`Context`, `emitter` has the interface through which a context uses the runtime, and `options` has
the options of an LLM call. Tools are in `agentrt.interrupts`.
"""

from __future__ import annotations

from agentrt.program.context import Context
from agentrt.program.definition import Program, node, program
from agentrt.program.emitter import Emitter, ForwardingEmitter

__all__ = ["Context", "Emitter", "ForwardingEmitter", "Program", "node", "program"]
