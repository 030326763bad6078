"""Runs and searches of LangGraph's API, beside LangGraph's own in-memory server."""
