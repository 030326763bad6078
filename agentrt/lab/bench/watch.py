"""Catches the runs of programs that somebody else starts, such as LangGraph's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrt.runtime.events import Event, ProgramStarted
from agentrt.runtime.registry import RunRegistry
from agentrt.runtime.run import Run


@contextmanager
def started_in(registry: RunRegistry) -> Iterator[list[Run]]:
    """The runs that start meanwhile, in order; they stay after their end."""
    runs: list[Run] = []

    def saw(event: Event) -> None:
        if isinstance(event, ProgramStarted):
            runs.append(registry.runs[event.program_id])

    registry.listen(saw)
    try:
        yield runs
    finally:
        registry.unlisten(saw)
