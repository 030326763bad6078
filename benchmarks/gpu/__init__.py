"""A comparison on one GPU: stock vLLM and agentrt's defaults, both also with vLLM's offload, and
ThunderAgent's rule.
"""
