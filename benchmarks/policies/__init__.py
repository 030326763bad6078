"""A comparison of policies with stock vLLM: latency by load, in virtual time and on real
engines.
"""
