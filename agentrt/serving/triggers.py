"""Starts served programs by themselves, one for each event: ``agentrt serve --on``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from fastapi import APIRouter
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from agentrt.errors import ConfigError, ToolUnavailableError
from agentrt.interrupts.events import Event, Subscription
from agentrt.program import Program
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.runs import ProgramRuns, ServedRun
from agentrt.serving.server import Api, Served, ServedProgram, Server
from agentrt.serving.tenants import BusyError

_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """An event of ``topic`` starts ``program``, in the name of ``tenant``. At most ``most`` of
    them run at once. The program's input is ``{"topic": …, "payload": …}``.
    """

    topic: str
    program: str
    most: int = 16
    tenant: str = "default"


def api_with(triggers: Sequence[Trigger], notice: Callable[[str], None]) -> Api:
    """An API without routes, which runs the triggers. ``notice`` gets lines for people."""

    @asynccontextmanager
    async def api(server: Server) -> AsyncIterator[APIRouter]:
        runs = ProgramRuns(server)
        firing = [Firing(one, server, runs, notice) for one in triggers]
        try:
            async with AsyncExitStack() as stack:
                for one in firing:
                    doing = server.background.doing(f"on {one.trigger.topic}", one.run)
                    await stack.enter_async_context(doing)
                yield APIRouter()
        finally:
            await runs.close()

    return api


class Firing:
    """One trigger at work."""

    def __init__(
        self, trigger: Trigger, server: Server, runs: ProgramRuns, notice: Callable[[str], None]
    ) -> None:
        self.trigger = trigger
        self._program = program_of(trigger, server.served)
        self._server, self._runs, self._notice = server, runs, notice
        self._events = server.runtime.events
        self._live: set[ServedRun] = set()

    async def run(self) -> None:
        """Start a program for each event, for ever."""
        subscription = await self._subscribed()
        try:
            while True:
                event = await subscription.next()
                if event.dropped:
                    self._notice(f"on {self.trigger.topic}: {event.dropped} events were dropped")
                self._take(event)
        finally:
            await subscription.close()

    async def _subscribed(self) -> Subscription:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(ToolUnavailableError),
            wait=wait_exponential_jitter(max=_LONGEST_PAUSE_S),
            before_sleep=lambda state: self._notice(
                f"on {self.trigger.topic}: {state.outcome and state.outcome.exception()}; trying on"
            ),
        )
        topic, tenant = self.trigger.topic, self.trigger.tenant
        return await retrying(self._events.subscribe, topic, tenant)

    def _take(self, event: Event) -> None:
        trigger = self.trigger
        if self._server.draining:
            self._refuse(event, "the server stops")
        elif len(self._live) >= trigger.most:
            self._refuse(event, f"{trigger.most} programs of this trigger run already")
        else:
            given = {"topic": event.topic, "payload": event.payload}
            body = RunRequest(input=given, deadline=None, wait=False)
            try:
                one = self._runs.start(self._program, trigger.tenant, body, event)
            except BusyError as error:
                self._refuse(event, str(error))
                return
            self._live.add(one)
            assert one.run.task is not None
            one.run.task.add_done_callback(functools.partial(self._ended, one))

    def _ended(self, one: ServedRun, task: asyncio.Task[None]) -> None:
        self._live.discard(one)
        self._runs.sweep()

    def _refuse(self, event: Event, why: str) -> None:
        self._runs.refuse(event, why, self.trigger.program, self.trigger.tenant)


def program_of(trigger: Trigger, served: Mapping[str, Served]) -> Program:
    """What a trigger starts. Raises `ConfigError` for what cannot be started so."""
    one = served.get(trigger.program)
    if not isinstance(one, ServedProgram):
        programs = [name for name, one in served.items() if isinstance(one, ServedProgram)]
        known = ", ".join(programs) or "there is none"
        raise ConfigError(f"--on …={trigger.program}: no program of this name is served ({known})")
    if not one.program.takes_input:
        raise ConfigError(
            f"--on …={trigger.program}: it takes no input; write async def {trigger.program}"
            "(ctx, event)"
        )
    return one.program
