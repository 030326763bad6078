"""Runs calls on models of Hugging Face transformers, in this process and without vLLM.

This is slower than vLLM, but a program may choose which earlier tokens each token attends to
(`agentrt.contexts.attention`).
"""

from agentrt.executors.transformers.executor import TransformersExecutor

__all__ = ["TransformersExecutor"]
