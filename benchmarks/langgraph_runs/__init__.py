"""Runs and searches of LangGraph's API, compared with LangGraph's own in-memory server."""
