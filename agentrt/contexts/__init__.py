"""Contexts: what programs own of a model's memory, to fill, fork, generate from and score.

A context is a value in token ids; the engine's prefix cache is what makes it cheap. `context` has
the operations, `generation` and `results` what they give, and `emitter` what they need of the
runtime.
"""

from __future__ import annotations

from agentrt.contexts.attention import Attention
from agentrt.contexts.context import Content, TokenContext
from agentrt.contexts.emitter import TokenEmitter
from agentrt.contexts.generation import Generation
from agentrt.contexts.results import Completion, Scores, TokenScore

__all__ = [
    "Attention",
    "Completion",
    "Content",
    "Generation",
    "Scores",
    "TokenContext",
    "TokenEmitter",
    "TokenScore",
]
