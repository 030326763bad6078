"""LangGraph with and without the process's follower, and the runs that the follower begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers import context

from agentrt.integrations.langgraph import follow
from agentrt.runtime.events import Event, ProgramStarted
from agentrt.runtime.run import Run


class Idle(BaseCallbackHandler):
    """A handler that does nothing: what LangChain's own part costs of following."""

    run_inline = True
    ignore_llm = ignore_chat_model = ignore_retry = ignore_retriever = True
    ignore_custom_event = True


# One handler for all contexts is what is wanted: it keeps nothing.
_IDLE: ContextVar[BaseCallbackHandler | None] = ContextVar("agentrt_idle", default=Idle())  # noqa: B039


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


@contextmanager
def runs_started() -> Iterator[list[Run]]:
    """The runs of LangGraph's graphs that start meanwhile, in order; they stay after their end."""
    runs: list[Run] = []
    registry = follow().registry

    def saw(event: Event) -> None:
        if isinstance(event, ProgramStarted):
            runs.append(registry.runs[event.program_id])

    registry.listen(saw)
    try:
        yield runs
    finally:
        registry.unlisten(saw)
