"""LangGraph programs on agentrt: whose call it is, and what had to finish before it.

`follow` is all that a program needs; `ChatAgentRT` calls it.
"""

from agentrt.integrations.langgraph.follower import Follower, follow, place_of_call

__all__ = ["Follower", "follow", "place_of_call"]
