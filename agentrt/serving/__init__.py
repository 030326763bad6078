"""The HTTP server.

`agentrt.serving.app` combines its APIs: ``frontend`` (vLLM's routes for models), ``programs`` (runs
of served programs and of clients' own programs), ``langgraph`` (the LangGraph API for graphs),
``mcp`` (tools for MCP clients), ``submit`` (programs sent as source), ``batches`` (OpenAI's files
and batches), ``questions`` (to humans), ``chat`` (a page), ``weights`` (updates of the model) and
``observability`` (dashboard, metrics, health).
"""
