"""Other people's load generators on `agentrt serve`, beside vLLM's own server."""
