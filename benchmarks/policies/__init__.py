"""Policies beside stock vLLM: latency by load, in virtual time and on real engines."""
