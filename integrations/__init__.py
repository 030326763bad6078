"""Bridges to other frameworks (LangGraph, MQTT, MCP, …). None is built yet."""
