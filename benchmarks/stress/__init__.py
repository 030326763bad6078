"""Tests vLLM's real scheduler with random programs, requests and engines, and checks invariants."""
