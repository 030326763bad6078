"""Contexts: what programs own of a model's memory, to fill, fork, generate from and score.

A context is a value in token ids; the engine's prefix cache is what makes it cheap. `context` has
the operations, `generation` and `results` what they give, and `emitter` what they need of the
runtime. `constraints` and `automaton` say what a text has to obey, and `steered` has it obey.
"""

from __future__ import annotations

from agentrt.contexts.attention import Attention
from agentrt.contexts.automaton import END, Automaton
from agentrt.contexts.chat import Content
from agentrt.contexts.constraints import choices, ebnf, json_schema, regex
from agentrt.contexts.context import TokenContext
from agentrt.contexts.emitter import TokenEmitter
from agentrt.contexts.generation import Generation
from agentrt.contexts.results import Completion, Scores, TokenScore

__all__ = [
    "END",
    "Attention",
    "Automaton",
    "Completion",
    "Content",
    "Generation",
    "Scores",
    "TokenContext",
    "TokenEmitter",
    "TokenScore",
    "choices",
    "ebnf",
    "json_schema",
    "regex",
]
