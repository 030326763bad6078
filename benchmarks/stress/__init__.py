"""Tests of vLLM's real scheduler with random programs, requests and engines, which check
invariants.
"""
