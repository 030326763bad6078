"""Programs whose contexts do not fit into the KV cache together."""
