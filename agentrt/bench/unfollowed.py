"""LangChain as it is without us: the process's follower taken off its list of handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.tracers import context

from agentrt.integrations.langgraph import follow


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
