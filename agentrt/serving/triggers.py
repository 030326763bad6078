"""Start a run of a served program for each event of a topic: ``agentrt serve --on``."""

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
from agentrt.serving.programs.left import input_of
from agentrt.serving.programs.runs import ProgramRuns, ServedRun
from agentrt.serving.server import Api, Served, ServedProgram, Server
from agentrt.serving.tenants import BusyError

_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class Trigger:
    """A trigger: each event of ``topic`` starts ``program`` for ``tenant``.

    At most ``most`` of these programs run at the same time; further events are refused. The
    program's input is ``{"topic": …, "payload": …}``, converted to the type that the program
    expects. An event that cannot be converted is refused.
    """

    topic: str
    program: str
    most: int = 16
    tenant: str = "default"


def api_with(triggers: Sequence[Trigger], notice: Callable[[str], None]) -> Api:
    """Return an API without routes that runs the triggers.

    ``notice`` is called with messages for the operator.
    """

    @asynccontextmanager
    async def api(server: Server) -> AsyncIterator[APIRouter]:
        runs = ProgramRuns(server)
        firing = [Firing(trigger, server, runs, notice) for trigger in triggers]
        try:
            async with AsyncExitStack() as stack:
                for running in firing:
                    doing = server.background.doing(f"on {running.trigger.topic}", running.run)
                    await stack.enter_async_context(doing)
                yield APIRouter()
        finally:
            await runs.close()

    return api


class Firing:
    """A running trigger, and the live runs that it started."""

    def __init__(
        self, trigger: Trigger, server: Server, runs: ProgramRuns, notice: Callable[[str], None]
    ) -> None:
        self.trigger = trigger
        self._program = program_of(trigger, server.served)
        self._server, self._runs, self._notice = server, runs, notice
        self._events = server.runtime.events
        self._live: set[ServedRun] = set()

    async def run(self) -> None:
        """Start a program for each event, until the task is cancelled."""
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
                f"on {self.trigger.topic}: {state.outcome and state.outcome.exception()}; retrying"
            ),
        )
        topic, tenant = self.trigger.topic, self.trigger.tenant
        return await retrying(self._events.subscribe, topic, tenant)

    def _take(self, event: Event) -> None:
        trigger = self.trigger
        if self._server.draining:
            self._refuse(event, "the server is shutting down")
        elif len(self._live) >= trigger.most:
            self._refuse(event, f"{trigger.most} programs of this trigger run already")
        else:
            body = RunRequest(deadline=None, wait=False)
            try:
                accepted = self._program.accept_input(input_of(event))
                body = body.model_copy(update={"input": accepted})
                served_run = self._runs.start(self._program, trigger.tenant, body, event)
            except (BusyError, ConfigError) as error:
                self._refuse(event, str(error))
                return
            self._live.add(served_run)
            assert served_run.run.task is not None
            served_run.run.task.add_done_callback(functools.partial(self._ended, served_run))

    def _ended(self, served_run: ServedRun, task: asyncio.Task[None]) -> None:
        self._live.discard(served_run)
        self._runs.sweep()

    def _refuse(self, event: Event, why: str) -> None:
        self._runs.refuse(event, why, self.trigger.program, self.trigger.tenant)


def program_of(trigger: Trigger, served: Mapping[str, Served]) -> Program:
    """Return the program that a trigger starts.

    Raises `ConfigError` for an unknown program, a graph, or a program without an input.
    """
    served_program = served.get(trigger.program)
    if not isinstance(served_program, ServedProgram):
        programs = [name for name, program in served.items() if isinstance(program, ServedProgram)]
        known = ", ".join(programs) or "none"
        raise ConfigError(f"--on …={trigger.program}: unknown program; served programs: {known}")
    if not served_program.program.takes_input:
        raise ConfigError(
            f"--on …={trigger.program}: the program takes no input, but the event is its input; "
            f"write async def {trigger.program}(ctx, event)"
        )
    return served_program.program
