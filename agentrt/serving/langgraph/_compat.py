"""Private parts of LangGraph that the API uses: reserved names, message streams, `Auth` hooks.

``tests/serving/langgraph/test_compat.py`` names the tested versions, and fails when a part
that is used here has changed or disappeared.
"""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph_sdk import Auth

# -- names --------------------------------------------------------------------------------

PREGEL_PREFIX = "__pregel_"
"""The prefix of the configurable keys that a graph passes on from its own run to a remote graph."""
STRICT_RESUME = "__pregel_strict_resume"
RESUME = "__resume__"
INTERRUPT = "__interrupt__"
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""The task id under which LangGraph stores a command and the answers that no task has taken yet."""

# -- streams of messages ------------------------------------------------------------------


def message_streams(config: RunnableConfig) -> list[StreamMessagesHandler]:
    """Return the handlers that stream the messages of a node in stream modes. The list is empty if
    no client requested these modes.
    """
    callbacks = config.get("callbacks")
    handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else ()
    # A subclass of this handler belongs to the streaming protocol, and does not take tokens.
    return [handler for handler in handlers if type(handler) is StreamMessagesHandler]


# -- authentication hooks -----------------------------------------------------------------


def authenticate_hook(auth: Auth | None) -> Any:
    """Return the hook that identifies the user of a request, or None if there is no such hook."""
    return None if auth is None else auth._authenticate_handler


def authorize_hook(auth: Auth | None, resource: str, action: str) -> Any:
    """Return the most specific ``on`` hook for an action on a resource, or None if there is no such
    hook.
    """
    if auth is None:
        return None
    for key in ((resource, action), (resource, "*"), ("*", action)):
        if hooks := auth._handlers.get(key):
            return hooks[-1]
    return auth._global_handlers[-1] if auth._global_handlers else None
