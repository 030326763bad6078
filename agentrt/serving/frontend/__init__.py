"""vLLM's front ends over HTTP: each request gets its model and its program, within limits."""
