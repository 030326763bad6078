"""The server for programs and for their clients, over HTTP.

`agentrt.serving.app` puts its rooms together: ``openai`` (models and programs behind the OpenAI
API), ``langgraph`` (graphs behind the LangGraph API) and ``observability`` (dashboard, metrics).
"""
