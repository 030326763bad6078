"""LangGraph programs on agentrt: find each call's program, and the nodes that the call waited for.

`ChatAgentRT` calls `follow` itself. `instrument` is for other chat models, which call a model over
HTTP.
"""

from agentrt.integrations.langgraph.follower import Follower, follow, scope_of_call
from agentrt.integrations.langgraph.instrument import instrument, uninstrument

__all__ = ["Follower", "follow", "instrument", "scope_of_call", "uninstrument"]
