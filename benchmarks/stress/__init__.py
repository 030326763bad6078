"""Random programs, requests and engines on vLLM's real scheduler, and what must always hold."""
