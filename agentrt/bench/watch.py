"""Catches the runs of programs that somebody else starts, such as LangGraph's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agentrt.events import Event, ProgramStarted
from agentrt.ledger import Ledger
from agentrt.run import Run


@contextmanager
def started_in(ledger: Ledger) -> Iterator[list[Run]]:
    """The runs that start meanwhile, in order; they stay after their end."""
    runs: list[Run] = []

    def saw(event: Event) -> None:
        if isinstance(event, ProgramStarted):
            runs.append(ledger.runs[event.program_id])

    ledger.listen(saw)
    try:
        yield runs
    finally:
        ledger.unlisten(saw)
