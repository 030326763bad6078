"""Prompting techniques: programs that use agentrt's contexts, compared with an HTTP client."""
