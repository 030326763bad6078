"""Bridges to other frameworks (LangGraph, MQTT, MCP, …). `langchain` is the first."""
