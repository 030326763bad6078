"""Integrations with other frameworks and protocols: LangChain, LangGraph, MQTT, MCP and
OpenTelemetry.
"""
