"""A comparison of stock vLLM, vLLM's offload, a rival and agentrt's defaults on one GPU."""
