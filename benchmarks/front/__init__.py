"""What a front end takes of the processor for a call: ours, and vLLM's alone."""
