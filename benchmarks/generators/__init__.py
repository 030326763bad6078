"""Load generators of other projects on `agentrt serve`, compared with vLLM's own server."""
