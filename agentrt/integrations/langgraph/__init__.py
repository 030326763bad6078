"""LangGraph programs on agentrt: whose call it is, and what had to finish before it.

`ChatAgentRT` needs nothing from here: it calls `follow` itself. `instrument` is for other chat
models, whose calls go over HTTP.
"""

from agentrt.integrations.langgraph.follower import Follower, follow, scope_of_call
from agentrt.integrations.langgraph.instrument import instrument, uninstrument

__all__ = ["Follower", "follow", "instrument", "scope_of_call", "uninstrument"]
