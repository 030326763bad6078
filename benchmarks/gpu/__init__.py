"""A comparison on one GPU: stock vLLM, vLLM's offload, ThunderAgent's rule, agentrt's defaults."""
