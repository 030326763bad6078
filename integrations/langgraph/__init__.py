"""LangGraph programs on agentrt: whose call it is, and what had to finish before it.

`follow` is all that a program needs; `ChatAgentRT` calls it.
"""

from agentrt.integrations.langgraph.follower import Follower, follow

__all__ = ["Follower", "follow"]
