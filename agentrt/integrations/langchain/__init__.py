"""LangChain on agentrt: `ChatAgentRT`, a chat model whose calls the runtime schedules."""

from __future__ import annotations

from agentrt.integrations._compat.langgraph import add_provider
from agentrt.integrations.langchain.chat import ChatAgentRT
from agentrt.integrations.langchain.client import RuntimeClient

__all__ = ["ChatAgentRT", "RuntimeClient"]

add_provider("agentrt", __name__, ChatAgentRT.__name__)
