"""What the error says that a run of LangChain's ended with, if it did."""

from __future__ import annotations

from collections.abc import Sequence

from agentrt.runtime.run import RunState


def ending(error: BaseException | None) -> tuple[RunState, BaseException | None]:
    """How a program ended whose root run ended with ``error``, and whether that is a fault."""
    from langgraph.errors import GraphDrained

    if error is None or asks(error):
        return RunState.DONE, None
    if isinstance(error, GraphDrained):  # it was told to stop, and did
        return RunState.CANCELLED, None
    if isinstance(error, Exception):
        return RunState.FAILED, error
    return RunState.CANCELLED, None


def asks(error: BaseException) -> Sequence[tuple[str, str]]:
    """The ids and texts of the questions that a `GraphInterrupt` carries."""
    from langgraph.errors import GraphInterrupt

    if not isinstance(error, GraphInterrupt):
        return []
    interrupts = error.args[0] if error.args else ()
    return [(one.id, str(one.value)) for one in interrupts]
