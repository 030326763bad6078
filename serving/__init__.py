"""The HTTP server of programs.

`agentrt.serving.app` puts its APIs together: ``openai`` (models and programs behind the OpenAI
API), ``langgraph`` (graphs behind the LangGraph API) and ``observability`` (dashboard, metrics).
"""
