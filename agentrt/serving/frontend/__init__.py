"""vLLM's front ends behind HTTP: whose a request is, what it may ask for, and its model."""
