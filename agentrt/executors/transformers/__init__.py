"""Calls on Hugging Face transformers' own models: slower than vLLM, and open to what it fixes.

A program may choose here which earlier tokens each token sees (`agentrt.contexts.attention`).
"""

from agentrt.executors.transformers.executor import TransformersExecutor

__all__ = ["TransformersExecutor"]
