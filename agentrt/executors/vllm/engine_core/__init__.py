"""The code of the engine core's process: agentrt's scheduler, and the modules that connect it with
vLLM.

The package `agentrt.executors.vllm` has the code of the user's process: the engine, its options,
and its calls.
"""
