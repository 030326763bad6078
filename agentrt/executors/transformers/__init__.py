"""Calls on models of Hugging Face transformers: slower than vLLM, but more can be changed.

Here a program may choose which earlier tokens each token attends to (`agentrt.contexts.attention`).
"""

from agentrt.executors.transformers.executor import TransformersExecutor

__all__ = ["TransformersExecutor"]
