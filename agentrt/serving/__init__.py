"""The HTTP server of programs.

`agentrt.serving.app` puts its APIs together: ``frontend`` (vLLM's own, for models), ``programs``
(sessions, and programs that are served), ``langgraph`` (graphs behind the LangGraph API), ``mcp``,
``submit``, ``questions``, ``chat``, and ``observability`` (dashboard, metrics, health).
"""
