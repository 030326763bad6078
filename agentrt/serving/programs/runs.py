"""The runs of served ``@program`` functions that clients have started."""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import Response

from agentrt import tracking
from agentrt.interrupts.events import Event as HappenedEvent
from agentrt.interrupts.questions import Question
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.events import Event, NodeChanged, NodeEnded, NodeStarted, ProgramEnded
from agentrt.runtime.run import Run, RunState
from agentrt.serving.error_responses import ApiError
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.left import LeftRun, durable_of
from agentrt.serving.questions.asked import Asked
from agentrt.serving.server import Server
from agentrt.serving.tenants import BusyError
from agentrt.steady import Alarm

_KEPT = 1000
"""Ended runs whose results can still be asked for."""
_KEPT_S = 3600.0
_AHEAD = 1024
"""Events that are kept for a slow reader. It misses nodes beyond that, but not the result."""


@dataclass(slots=True, eq=False)
class ServedRun:
    """A run that a client started. ``seen`` says how people see a question of its; ``open`` has
    those that are open, by their ids.
    """

    run: Run
    tenant: str
    seen: Callable[[Question], Asked]
    late: Alarm | None = None
    is_late: bool = False
    watchers: set[asyncio.Queue[Event | Asked]] = field(default_factory=set)
    open: dict[str, Question] = field(default_factory=dict)

    @property
    def questions(self) -> dict[str, Asked]:
        """The open questions as people see them now."""
        return {key: self.seen(question) for key, question in self.open.items()}

    def watch(self) -> asyncio.Queue[Event | Asked]:
        """The run's events from now on, and its questions as they open and are closed."""
        box: asyncio.Queue[Event | Asked] = asyncio.Queue(_AHEAD)
        self.watchers.add(box)
        return box

    def publish(self, what: Event | Asked) -> None:
        """Put an event into all watchers' queues. A slow one misses some, but not the end."""
        for box in self.watchers:
            if not box.full() or isinstance(what, ProgramEnded):
                if box.full():
                    box.get_nowait()
                box.put_nowait(what)


RunAnswer = Callable[[Request, ServedRun, RunRequest], Awaitable[Response]]
"""Answers the request that started a run, as its body asks."""


class ProgramRuns:
    """The runs that clients started, the ended ones for a while."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._runtime = server.runtime
        self._runs: OrderedDict[str, ServedRun] = OrderedDict()
        self._refusals: set[asyncio.Task[None]] = set()
        self._runtime.registry.listen(self._saw)
        self._runtime.questions.listen(self._asked)

    def start(
        self,
        program: Program,
        tenant: str,
        body: RunRequest,
        event: HappenedEvent | None = None,
        *,
        durable: Durable | None = None,
    ) -> ServedRun:
        """Start a program, for an ``event`` that it has as its input. ``durable`` says how it is
        recorded, if not as its ``body`` says. Raises `BusyError` where the tenant is at a limit.
        """
        tenants, live = self._server.tenants, self._server.live
        most = tenants.limits(tenant).programs
        if live[tenant] >= most:
            raise BusyError(f"tenant {tenant!r} has {most} live programs; end some", 1.0)
        tenants.ask(tenant)
        if durable is None and any(program is native for native in self._server.native.values()):
            now = self._runtime.steady.now()
            durable = durable_of(body, now, by_event=event is not None)
        return self._begin(program, tenant, body, durable, event)

    def go_on(self, program: Program, left: LeftRun) -> ServedRun:
        """Go on with a run of the last server, or a parked one. What it had been admitted for
        holds.
        """
        event = HappenedEvent(**left.body.input) if left.durable.options.get("event") else None
        return self._begin(program, left.tenant, left.body, left.durable, event)

    def _begin(
        self,
        program: Program,
        tenant: str,
        body: RunRequest,
        durable: Durable | None,
        event: HappenedEvent | None,
    ) -> ServedRun:
        run = self._runtime.start(
            program, body.input, tenant=tenant, session=body.session, durable=durable
        )
        seen = self._server.questions.of_programs.seen
        one = self._runs[run.id] = ServedRun(run, tenant, seen)
        assert run.task is not None
        self._server.live[tenant] += 1
        # Nobody may be waiting for it: a server that stops does.
        self._server.under_way.add(run.task)
        run.task.add_done_callback(functools.partial(self._over, tenant, run))
        if event is not None:
            run.task.add_done_callback(functools.partial(self._over_for, event, run))
        if body.deadline is not None:
            too_late = functools.partial(self._too_late, one)
            one.late = self._runtime.steady.call_later(body.deadline, too_late)
        return one

    def _over(self, tenant: str, run: Run, task: asyncio.Task[None]) -> None:
        if run.parked:
            self._runs.pop(run.id, None)
        self._server.under_way.discard(task)
        live = self._server.live
        live[tenant] -= 1
        if not live[tenant]:
            del live[tenant]

    def _over_for(self, event: HappenedEvent, run: Run, task: asyncio.Task[None]) -> None:
        if run.state is RunState.FAILED:
            why = f"failed: {type(run.error).__name__}: {run.error}"
        elif run.state is RunState.DONE or (run.record is not None and run.left):
            return  # what is left goes on later
        else:
            why = f"was {run.state}"
        self.refuse(event, f"program {run.id} {why}", run.type, run.row.tenant)

    def refuse(self, event: HappenedEvent, why: str, program: str, tenant: str) -> None:
        """An event came to nothing: keep it for people."""
        sending = self._runtime.events.refuse(event, why, program, tenant)
        with tracking.outside():
            task = asyncio.ensure_future(sending)
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def has(self, run_id: str) -> bool:
        """Whether this server has run it, and it is not parked."""
        return run_id in self._runs and not self._runs[run_id].run.parked

    def live(self, run_id: str) -> ServedRun | None:
        """A run that has not ended, and is not parked."""
        one = self._runs.get(run_id) if self.has(run_id) else None
        return None if one is None or one.run.ended_at is not None else one

    def get(self, tenant: str, name: str, run_id: str) -> ServedRun:
        """The tenant's run of the program ``name``. Raises `ApiError` if there is none."""
        one = self._runs.get(run_id) if self.has(run_id) else None
        if one is None or one.tenant != tenant or one.run.type != name:
            raise ApiError(404, f"there is no run {run_id!r} of program {name!r}", code="not_found")
        return one

    def forget(self, served: ServedRun) -> None:
        """Forget a run that has ended, and whose result nobody will ask for."""
        self._runs.pop(served.run.id, None)

    def sweep(self) -> None:
        """Forget the runs that ended long ago, and the oldest of too many."""
        now = self._runtime.now()
        ended = [run_id for run_id, one in self._runs.items() if one.run.ended_at is not None]
        for index, run_id in enumerate(ended):
            at = self._runs[run_id].run.ended_at or now
            if now - at >= _KEPT_S or index < len(ended) - _KEPT:
                del self._runs[run_id]

    async def close(self) -> None:
        """Cancel what runs. The next server goes on with what is in the journal."""
        self._runtime.registry.unlisten(self._saw)
        self._runtime.questions.unlisten(self._asked)
        tasks = [one.run.task for one in self._runs.values() if one.run.task is not None]
        for one in self._runs.values():
            one.run.left = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._refusals:
            await asyncio.wait(self._refusals)

    def _too_late(self, one: ServedRun) -> None:
        one.is_late = True
        one.run.cancel()

    def _saw(self, event: Event) -> None:
        one = self._runs.get(event.program_id)
        if one is None:
            return
        if isinstance(event, ProgramEnded) and one.late is not None:
            one.late.cancel()
        if one.watchers and isinstance(event, NodeStarted | NodeChanged | NodeEnded):
            # The node itself will have gone on by the time that somebody reads this.
            event = replace(event, node=event.node.copy())
        one.publish(event)

    def _asked(self, question: Question) -> None:
        one = self._runs.get(question.program_id)
        if one is None:
            return
        one.open.pop(question.id, None)
        if question.state == "open":
            one.open[question.id] = question
        one.publish(one.seen(question))
