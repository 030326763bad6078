"""The CPU time of a front end for a call: ours, and vLLM's alone."""
