"""What the emitters of all runs of one runtime share."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

from agentrt.executors.base import Executor
from agentrt.executors.frontend import Frontend
from agentrt.interrupts.attempts import Attempts
from agentrt.interrupts.questions import Questions
from agentrt.interrupts.toolbox import Toolbox


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The engine, its front end, tools and humans. ``seed`` makes drawn seeds repeatable."""

    executor: Executor
    frontend: Callable[[], Awaitable[Frontend]]
    toolbox: Toolbox
    questions: Questions
    seed: int = 0
    attempts: Attempts = dataclasses.field(default_factory=Attempts)
    client_calls: dict[asyncio.Task[Any], str] = dataclasses.field(default_factory=dict)
    """Tasks in the middle of a call of a client program, with the program's id."""
