"""Contexts: token sequences that a program fills, forks, generates from and scores.

A context is a value that consists of token ids. A context is cheap, because the engine's prefix
cache keeps the KV blocks that were computed for these tokens. The module `context` has the
operations, `generation` and `results` have their results, and `emitter` has the interface to the
runtime. `constraints` and `automaton` define the constraints of an output, and `generation` also
generates outputs that obey an automaton.
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
