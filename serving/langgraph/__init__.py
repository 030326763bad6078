"""Graphs behind the LangGraph API."""
