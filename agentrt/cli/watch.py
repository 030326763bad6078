"""Watches the programs that a command runs, and the calls that belong to none of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from agentrt.cli.screen import Screen
from agentrt.graph import NodeKind
from agentrt.runtime import Runtime
from agentrt.runtime.events import Event, NodeStarted
from agentrt.runtime.run import Run


class Watch:
    """The ``runs`` so far, in the order of their start."""

    def __init__(self, screen: Screen) -> None:
        self.runs: list[Run] = []
        self._outside: list[Event] = []  # appended to from several threads
        self._screen = screen
        self._ids: set[str] = set()

    def add(self, run: Run) -> None:
        """Watch this run, too; it has just been started."""
        self.runs.append(run)
        self._ids.add(run.id)

    def show(self, runtime: Runtime) -> None:
        """Show the runs from now on, those too that are still to come."""
        self._screen.watch(self.runs, runtime.executor.snapshot, runtime.now)

    def saw(self, event: Event) -> None:
        """Something happened in the runtime."""
        if event.program_id in self._ids:
            self._screen.saw(event)
        else:
            self.saw_outside(event)

    def saw_outside(self, event: Event) -> None:
        """Something happened in a program that is none of the command's."""
        if isinstance(event, NodeStarted) and event.node.kind is NodeKind.CALL:
            self._outside.append(event)

    @property
    def outside_calls(self) -> int:
        """How many calls were made where no program is: in a thread of the user's own, say."""
        return len(self._outside)


@contextmanager
def watching(runtime: Runtime, screen: Screen) -> Iterator[Watch]:
    """Watch the runtime's programs, and those that LangChain's follower finds beside them."""
    watch = Watch(screen)
    runtime.listen(watch.saw)
    if "agentrt.integrations.langgraph.follower" not in sys.modules:
        yield watch
        return
    from agentrt.integrations.langgraph import follow

    beside = follow().registry
    beside.listen(watch.saw_outside)
    try:
        yield watch
    finally:
        beside.unlisten(watch.saw_outside)
