"""LangChain as it is without us: the process's follower taken off its list of handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers import context

from agentrt.integrations.langgraph import follow


class Idle(BaseCallbackHandler):
    """A handler that does nothing: what LangChain's own part costs of following."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_retry = ignore_retriever = True
    ignore_custom_event = True


_NOTHING = Idle()
_IDLE: ContextVar[BaseCallbackHandler | None] = ContextVar("agentrt_idle", default=_NOTHING)


@contextmanager
def unfollowed() -> Iterator[None]:
    """Run the body without the follower. What started before stays followed to its end.

    LangChain has a way to put a handler on the list, and none to take it off.
    """
    hooks = context._configure_hooks
    before, follower = list(hooks), follow()
    hooks[:] = [hook for hook in before if hook[0].get() is not follower]
    try:
        yield
    finally:
        hooks[:] = before


@contextmanager
def idly_followed() -> Iterator[None]:
    """Run the body with a handler in the follower's place that does nothing."""
    with unfollowed():
        context._configure_hooks.append((_IDLE, True, None, None))
        yield
