"""Where we reach into LangGraph: its own names, its streams of messages, its SDK's `Auth` hooks.

``tests/serving/langgraph/test_compat.py`` names the versions that this was tested with, and fails
when something here is gone or has changed.
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph_sdk import Auth

# -- names --------------------------------------------------------------------------------

PREGEL_PREFIX = "__pregel_"
"""Begins the configurable keys that a graph passes on from its own run to a remote graph."""
STRICT_RESUME = "__pregel_strict_resume"
RESUME = "__resume__"
INTERRUPT = "__interrupt__"
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""The task that a command is written to, with answers that no task has taken yet."""

# -- streams of messages ------------------------------------------------------------------


def message_streams(config: RunnableConfig) -> list[StreamMessagesHandler]:
    """What LangGraph streams the messages of a node with; none where nobody asked for them."""
    callbacks = config.get("callbacks")
    handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else ()
    # Its subclass is of the streaming protocol, and takes no tokens.
    return [one for one in handlers if type(one) is StreamMessagesHandler]


# -- authentication hooks -----------------------------------------------------------------


def authenticate_hook(auth: Auth | None) -> Any:
    """The hook that says who a request is from, if there is one."""
    return None if auth is None else auth._authenticate_handler


def authorize_hook(auth: Auth | None, resource: str, action: str) -> Any:
    """The most specific ``on`` hook for an action on a resource, if there is one."""
    if auth is None:
        return None
    for key in ((resource, action), (resource, "*"), ("*", action)):
        if hooks := auth._handlers.get(key):
            return hooks[-1]
    return auth._global_handlers[-1] if auth._global_handlers else None
