"""The runs of programs that clients or events have started: of served ``@program`` functions, of
submitted programs, and of graphs as tools of the MCP server.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import Response

from agentrt import tracking
from agentrt.errors import text_of
from agentrt.interrupts.events import Event as HappenedEvent
from agentrt.interrupts.questions import Question
from agentrt.program import Program
from agentrt.runtime.durable import Durable
from agentrt.runtime.events import Event, NodeChanged, NodeEnded, NodeStarted, RunEnded
from agentrt.runtime.run import Run, RunState, cancel_until_ended
from agentrt.serving.error_responses import ApiError, failure
from agentrt.serving.programs.bodies import RunRequest
from agentrt.serving.programs.left import LeftRun, durable_of, event_of
from agentrt.serving.questions.server_questions import QuestionView
from agentrt.serving.server import Server
from agentrt.serving.submit.limits import SubmittedProgramError
from agentrt.serving.tenants import BusyError
from agentrt.steady import Alarm

_LOG = logging.getLogger(__name__)
_KEPT = 1000
"""Maximum number of ended runs in memory, whose results clients can retrieve without a journal."""
_KEPT_S = 3600.0
"""Seconds for which an ended run stays in memory."""
_AHEAD = 1024
"""Maximum number of events that wait for a slow reader. The reader misses further events about
nodes, but never the end of the run. It misses a question only if all waiting events are about
questions.
"""


@dataclass(slots=True, eq=False)
class ServedRun:
    """A run of a program that a client or an event started.

    ``seen`` converts a question of the run into the form that clients see. ``open`` are the run's
    open questions, by id. ``late`` is the timer of the deadline, and ``is_late`` says that the run
    was cancelled at its deadline. ``watchers`` are the event queues of clients that follow the run.
    """

    run: Run
    tenant: str
    seen: Callable[[Question], QuestionView]
    late: Alarm | None = None
    is_late: bool = False
    watchers: set[asyncio.Queue[Event | QuestionView]] = field(default_factory=set)
    open: dict[str, Question] = field(default_factory=dict)

    @property
    def questions(self) -> dict[str, QuestionView]:
        """The open questions in the form that clients see, by id."""
        return {key: self.seen(question) for key, question in self.open.items()}

    def watch(self) -> asyncio.Queue[Event | QuestionView]:
        """Return a queue of the run's events from now on, and of its questions as they change."""
        box: asyncio.Queue[Event | QuestionView] = asyncio.Queue(_AHEAD)
        self.watchers.add(box)
        return box

    def publish(self, event: Event | QuestionView) -> None:
        """Put an event into all watchers' queues. If a queue is full, an event about a node is not
        put into it. Any other event replaces the oldest event about a node, or the oldest event if
        there is none about a node (`_make_room`).
        """
        for box in self.watchers:
            if box.full():
                if isinstance(event, _AboutNode):
                    continue
                _make_room(box)
            box.put_nowait(event)


_AboutNode = NodeStarted | NodeChanged | NodeEnded


def _make_room(box: asyncio.Queue[Event | QuestionView]) -> None:
    """Drop the oldest event about a node from a full queue; without such an event, the oldest
    event.
    """
    events = [box.get_nowait() for _ in range(box.qsize())]
    dropped = next((at for at, event in enumerate(events) if isinstance(event, _AboutNode)), 0)
    for event in (*events[:dropped], *events[dropped + 1 :]):
        box.put_nowait(event)


RunAnswer = Callable[[Request, ServedRun, RunRequest], Awaitable[Response]]
"""Answers the request that started a run: with a stream of events, with the run's result, or with
the run's state at its beginning.
"""


class ProgramRuns:
    """The runs that clients and events started, including recently ended runs."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._runtime = server.runtime
        self._runs: OrderedDict[str, ServedRun] = OrderedDict()
        self._refusals: set[asyncio.Task[None]] = set()
        self._is_listening = False

    def start(
        self,
        program: Program,
        tenant: str,
        body: RunRequest,
        event: HappenedEvent | None = None,
        *,
        durable: Durable | None = None,
    ) -> ServedRun:
        """Start a run of a program.

        ``event`` is the event that triggered the run, if any. ``durable`` says how the run is
        recorded in the journal. If it is None, a run of a served program is recorded as ``body``
        says, and any other run is not recorded. Raises `BusyError` if the tenant is at a limit.
        """
        tenants, live = self._server.tenants, self._server.live
        most = tenants.limits(tenant).programs
        if live[tenant] >= most:
            text = f"tenant {tenant!r} has {most} live programs, the most that it may have"
            raise BusyError(f"{text}; end a program first", 1.0)
        tenants.ask(tenant)
        if durable is None and any(program is native for native in self._server.native.values()):
            now, journal = self._runtime.steady.now(), self._runtime.journal
            stores_content = journal is not None and journal.content == "full"
            durable = durable_of(body, now, event, stores_content=stores_content)
        return self._begin(program, tenant, body, durable, event)

    def go_on(self, program: Program, left: LeftRun) -> ServedRun:
        """Resume a run of an earlier server, or a parked run.

        The tenant's limits are not checked again, because the run was admitted when it started.
        """
        return self._begin(program, left.tenant, left.body, left.durable, event_of(left))

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
        self._listen()
        seen = self._server.questions.of_programs.seen
        served_run = self._runs[run.id] = ServedRun(run, tenant, seen)
        assert run.task is not None
        self._server.live[tenant] += 1
        # A draining server waits for the run, even if no client does.
        self._server.under_way.add(run.task)
        run.task.add_done_callback(functools.partial(self._over, tenant, run))
        if event is not None:
            run.task.add_done_callback(functools.partial(self._over_for, event, run))
        if body.deadline is not None:
            too_late = functools.partial(self._too_late, served_run)
            served_run.late = self._runtime.steady.call_later(body.deadline, too_late)
        return served_run

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
            assert run.error is not None
            why = f"failed: {type(run.error).__name__}: {text_of(run.error)}"
        elif run.state is RunState.DONE or (run.record is not None and run.left):
            return  # the run succeeded, or it is resumed later from the journal
        else:
            why = f"was {run.state}"
        self.refuse(event, f"run {run.id} {why}", run.type, run.row.tenant)

    def refuse(self, event: HappenedEvent, why: str, program: str, tenant: str) -> None:
        """Record that an event started no run, or that its run failed or was cancelled, so that
        people see it.
        """
        sending = self._runtime.events.refuse(event, why, program, tenant)
        with tracking.outside():
            task = asyncio.ensure_future(sending)
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    def has(self, run_id: str) -> bool:
        """Return whether the run is in memory: running or recently ended, and not parked."""
        return run_id in self._runs and not self._runs[run_id].run.parked

    def live(self, run_id: str) -> ServedRun | None:
        """Return a run that has neither ended nor been parked; else None."""
        served_run = self._runs.get(run_id) if self.has(run_id) else None
        return None if served_run is None or served_run.run.ended_at is not None else served_run

    def get(self, tenant: str, name: str, run_id: str) -> ServedRun:
        """Return a tenant's run of the program ``name``. Raises `ApiError` for an unknown run."""
        served_run = self._runs.get(run_id) if self.has(run_id) else None
        if served_run is None or served_run.tenant != tenant or served_run.run.type != name:
            raise ApiError(404, f"unknown run {run_id!r} of program {name!r}", code="not_found")
        return served_run

    def forget(self, served: ServedRun) -> None:
        """Forget a run that has ended, and whose result nobody will ask for."""
        self._runs.pop(served.run.id, None)

    def sweep(self) -> None:
        """Forget runs that ended long ago, and the oldest ended runs beyond the maximum."""
        now = self._runtime.now()
        ended = [
            run_id
            for run_id, served_run in self._runs.items()
            if served_run.run.ended_at is not None
        ]
        for index, run_id in enumerate(ended):
            at = self._runs[run_id].run.ended_at or now
            if now - at >= _KEPT_S or index < len(ended) - _KEPT:
                del self._runs[run_id]

    async def close(self) -> None:
        """Cancel all runs. The next server resumes the runs that are in the journal and whose
        clients did not wait for the result.
        """
        if self._is_listening:
            self._runtime.registry.unlisten(self._on_event)
            self._runtime.questions.unlisten(self._on_question)
        tasks = [
            served_run.run.task
            for served_run in self._runs.values()
            if served_run.run.task is not None
        ]
        for served_run in self._runs.values():
            served_run.run.left = True
            cancel_until_ended(served_run.run)
        if tasks:
            await asyncio.wait(tasks)
        if self._refusals:
            await asyncio.wait(self._refusals)

    def _too_late(self, served_run: ServedRun) -> None:
        served_run.is_late = True
        cancel_until_ended(served_run.run)

    def _listen(self) -> None:
        """Start to listen to events when the first run starts. The events of all programs come
        here, so listening earlier would slow the calls of client programs even if nobody starts a
        run.
        """
        if not self._is_listening:
            self._is_listening = True
            self._runtime.registry.listen(self._on_event)
            self._runtime.questions.listen(self._on_question)

    def _on_event(self, event: Event) -> None:
        served_run = self._runs.get(event.program_id)
        if served_run is None:
            return
        if isinstance(event, RunEnded):
            if served_run.late is not None:
                served_run.late.cancel()
            error = served_run.run.error
            # The clients of submitted programs get the traceback in the response.
            if error is not None and not isinstance(error, SubmittedProgramError):
                _LOG.warning("run %s failed: %s", event.program_id, failure(error))
        if served_run.watchers and isinstance(event, _AboutNode):
            # Copy the node, which may change before a watcher reads the event.
            event = replace(event, node=event.node.copy())
        served_run.publish(event)

    def _on_question(self, question: Question) -> None:
        served_run = self._runs.get(question.program_id)
        if served_run is None:
            return
        served_run.open.pop(question.id, None)
        if question.state == "open":
            served_run.open[question.id] = question
        served_run.publish(served_run.seen(question))
