"""What the emitters of all runs of one runtime share."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from agentrt.contexts.saved import SavedContexts
from agentrt.executors.base import Executor
from agentrt.executors.chat_api import Frontend
from agentrt.interrupts.attempts import Attempts
from agentrt.interrupts.events import EventSource, Feed
from agentrt.interrupts.questions import Questions
from agentrt.interrupts.toolbox import Toolbox
from agentrt.steady import SteadyClock


@dataclasses.dataclass(slots=True, eq=False)
class ClientCall:
    """A call of a client program. The ``task`` that waits for its next chunk is in no run of its
    own, and may be another each time: so a runtime that closes finds it.

    ``ended`` is called when the call is over.
    """

    program_id: str
    ended: Callable[[], None] = lambda: None
    task: asyncio.Task[Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The engine, its front end, tools, humans, events. ``seed`` makes drawn seeds repeatable.
    Programs sleep and wait by the ``clock``.
    """

    executor: Executor
    frontend: Callable[[], Awaitable[Frontend]]
    toolbox: Toolbox
    questions: Questions
    events: EventSource
    clock: SteadyClock
    seed: int = 0
    attempts: Attempts = dataclasses.field(default_factory=Attempts)
    client_calls: set[ClientCall] = dataclasses.field(default_factory=set)
    """The calls of client programs that are read."""
    feeds: dict[str, set[Feed]] = dataclasses.field(default_factory=dict)
    """What live programs are subscribed to, by their ids."""
    saved: SavedContexts = dataclasses.field(default_factory=SavedContexts)
    """Contexts that programs have saved."""

    async def end_feeds(self, program_id: str) -> None:
        """A program ended: it hears of no more events."""
        for feed in self.feeds.pop(program_id, ()):
            await feed.close()
