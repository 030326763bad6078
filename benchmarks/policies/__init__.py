"""Compares policies with stock vLLM: latency by load, in virtual time and on real engines."""
