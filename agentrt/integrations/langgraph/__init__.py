"""LangGraph programs on agentrt: find the program of each call, and the nodes that it waited for.

`ChatAgentRT` calls `follow` itself. `instrument` is for other chat models, which call a model over
HTTP.
"""

from agentrt.integrations.langgraph.follower import Follower, follow, scope_of_call
from agentrt.integrations.langgraph.instrument import instrument, uninstrument

__all__ = ["Follower", "follow", "instrument", "scope_of_call", "uninstrument"]
