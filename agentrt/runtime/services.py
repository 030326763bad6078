"""The services that the emitters of all runs of one runtime share."""

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
    """A call that no task of its run makes: a call of a client program, or of a chat model of
    LangChain in any program.
    """

    program_id: str
    ended: Callable[[], None] = lambda: None
    """Called when the call is over."""
    task: asyncio.Task[Any] | None = None
    """The task that waits for the next chunk; each chunk may be read by another task. The task
    belongs to no run, so a runtime that closes uses this field to cancel the task.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The engine, its front end, tools, questions and events of one runtime.

    ``clock`` is the clock by which programs sleep and wait. ``seed`` makes the random seeds of
    calls repeatable.
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
    """The calls in flight that no task of their run makes."""
    feeds: dict[str, set[Feed]] = dataclasses.field(default_factory=dict)
    """The event subscriptions of live programs, by the ids of the programs."""
    saved: SavedContexts = dataclasses.field(default_factory=SavedContexts)
    """The contexts that programs have saved."""

    async def end_feeds(self, program_id: str) -> None:
        """Close the event subscriptions of a program that ended or runs again."""
        for feed in self.feeds.pop(program_id, ()):
            await feed.close()
