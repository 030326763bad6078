"""The core of `agentrt run`, which starts the engine, runs a program's instances and stops the
engine. The module also serves the dashboard of a command.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from agentrt.cli.engine_log import EngineLog, start_engine
from agentrt.cli.human import Human
from agentrt.cli.journals import JournalPlan, all_done, describe_engine, opened_journal
from agentrt.cli.plan import OpenQuestion, Plan, Start
from agentrt.cli.screen import Screen
from agentrt.cli.signals import Drain
from agentrt.cli.streams import counted
from agentrt.cli.tools import NO_TOOLS, ToolSources
from agentrt.cli.traces import opened_runtime
from agentrt.errors import ConfigError
from agentrt.executors.base import Executor
from agentrt.executors.vllm.options import EngineOptions
from agentrt.graph import NodeKind
from agentrt.runtime import Runtime
from agentrt.runtime.events import Event, NodeStarted
from agentrt.runtime.run import Run, RunReport, RunState, cancel_until_ended
from agentrt.serving.questions.server_questions import ServerQuestions


class Watch:
    """An observer of a command's runs. ``runs`` has all runs, in the order of their start."""

    def __init__(self, screen: Screen) -> None:
        self.runs: list[Run] = []
        self._outside = 0
        self._lock = Lock()  # calls outside the programs begin in several threads
        self._screen = screen
        self._ids: set[str] = set()

    def add(self, run: Run) -> None:
        """Watch a run that has just been started."""
        self.runs.append(run)
        self._ids.add(run.id)

    def show(self, runtime: Runtime) -> None:
        """Show the runs on the screen from now on, including runs that start later."""
        self._screen.watch(self.runs, runtime.executor.snapshot, runtime.now)

    def saw(self, event: Event) -> None:
        """Pass an event of the command's runs to the screen. Count any other event as `saw_outside`
        does.
        """
        if event.program_id in self._ids:
            self._screen.saw(event)
        else:
            self.saw_outside(event)

    def saw_outside(self, event: Event) -> None:
        """Count an event outside the command's programs if it starts a call."""
        if isinstance(event, NodeStarted) and event.node.kind is NodeKind.CALL:
            with self._lock:
                self._outside += 1

    @property
    def outside_calls(self) -> int:
        """The number of calls that were made outside the command's programs, for example in a
        user's own thread.
        """
        return self._outside


@contextmanager
def watching(runtime: Runtime, screen: Screen) -> Iterator[Watch]:
    """Watch the runtime's programs during the ``with`` block. If the code of LangGraph's
    integration is loaded, also count the calls that its `Follower` sees outside these programs.
    """
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


_THREADS = 32


@dataclass(frozen=True, slots=True)
class Job:
    """The options of an `agentrt run`.

    ``timeout`` is the limit of each program, in seconds. At most ``max_live`` programs run at the
    same time. ``dashboard`` is the dashboard's port (0: any free port). ``tools`` are sources of
    further tools. ``traces`` is the address to which traces are sent, and ``journal`` the journal
    that records the programs.
    """

    plan: Plan
    options: EngineOptions
    seed: int = 0
    timeout: float | None = None
    max_live: int = 4096
    dag: Path | None = None
    timeline: Path | None = None
    dashboard: int | None = None
    tools: ToolSources = NO_TOOLS
    traces: str | None = None
    journal: JournalPlan | None = None
    timed_out: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """The outcome of a command: its runs, which have all ended, and the engine's description.

    ``questions`` are the questions that no human has answered. ``outside_calls`` is the number of
    calls that were made outside the command's programs. ``continues`` says that the
    programs continue the work of an earlier command, which may have made all their calls.
    """

    runs: Sequence[Run]
    engine: Mapping[str, Any]
    policy: str
    questions: Sequence[OpenQuestion] = ()
    outside_calls: int = 0
    continues: bool = False

    def reports(self) -> list[RunReport]:
        """Return the report of each run, in the order of their start."""
        return [run.report(run.ended_at or run.started_at) for run in self.runs]


async def execute(
    job: Job, executor: Executor, screen: Screen, log: EngineLog, drain: Drain
) -> CommandOutcome:
    """Start the engine, run the programs, and stop the engine.

    The engine does not start if there is no program to start, or if the journal has the results of
    all programs. Errors of programs stay in their runs. Raises the errors of the engine's start,
    and `UsageError` for a plan that cannot run. A signal of ``drain`` lets the running programs
    finish and starts no further programs. Cancelling this call cancels the programs and stops the
    engine.
    """
    human = Human(job.plan.answers, screen, elsewhere=_elsewhere(job))
    tools = job.tools.transports(screen.announce)
    events = job.tools.events()
    async with opened_journal(job.journal) as journal:
        with opened_runtime(
            executor,
            job.traces,
            ask_human=human,
            tools=tools,
            events=events,
            seed=job.seed,
            journal=journal,
        ) as runtime:
            return await _execute(job, runtime, human, screen, log, drain)


async def _execute(
    job: Job, runtime: Runtime, human: Human, screen: Screen, log: EngineLog, drain: Drain
) -> CommandOutcome:
    policy = job.options.scheduler.policy
    async with screen.showing(), job.plan.opened(human, runtime.questions.ask) as starts:
        # Take the first starts now, because they raise usage errors before the engine starts.
        first = await _take(starts, job.max_live)
        if not first:
            return CommandOutcome([], {}, policy, job.plan.questions)
        knows_all = await all_done(runtime.journal, first[0], job.plan.count)
        make_room(len(first))
        with watching(runtime, screen) as watch:
            if knows_all:
                assert job.journal is not None
                screen.announce(
                    f"{job.journal.place} has the results of all runs, so nothing runs again; "
                    "for new runs, name another file with --journal"
                )
                await runtime.open(screen.progress, with_engine=False)
            else:
                await start_engine(runtime, screen.progress, log)
            try:
                if runtime.has_engine:
                    await describe_engine(runtime, job.options.scheduler)
                with drain.possible(partial(_drain, job, runtime, screen)):
                    async with (
                        shown(runtime, job.dashboard, screen.announce),
                        job.tools.asking(ServerQuestions(runtime)),
                    ):
                        await _play(job, runtime, first, starts, watch)
                _note_unused_answers(job, runtime, human, screen, watch.runs)
                snapshot = await runtime.executor.snapshot() if runtime.has_engine else {}
            finally:
                if runtime.has_engine:
                    screen.progress("stopping the engine")
                await runtime.close()
        engine = _engine(job, runtime, snapshot)
        return CommandOutcome(
            watch.runs,
            engine,
            policy,
            job.plan.questions,
            watch.outside_calls,
            job.plan.continues,
        )


def _note_unused_answers(
    job: Job, runtime: Runtime, human: Human, screen: Screen, runs: Sequence[Run]
) -> None:
    """Say if the programs asked fewer questions than there are prepared answers. Say nothing if a
    program did not end, or may have used answers in an earlier process.
    """
    ended = (RunState.DONE, RunState.INTERRUPTED)
    unused = job.plan.unused_answers(human)
    if unused and runtime.journal is None and all(run.state in ended for run in runs):
        answers = f"{counted(unused, 'answer')} of --human {'was' if unused == 1 else 'were'}"
        screen.announce(f"{answers} not used, because the programs asked fewer questions")


def _elsewhere(job: Job) -> str:
    """Return words that say where humans can answer questions without a terminal, or ""."""
    if job.dashboard is not None:
        return "in the dashboard"
    return "" if job.tools.broker is None else f"at {job.tools.broker}"


def _drain(job: Job, runtime: Runtime, screen: Screen, signal: str) -> None:
    job.plan.drain()
    runtime.toolbox.drain()
    live = counted(len(runtime.runs), "program")
    screen.progress(
        f"{signal}: finishing {live}, starting no more; a second signal stops the command at once"
    )


def make_room(programs: int) -> None:
    """Make the event loop's thread pool large enough for the synchronous code of all programs.

    The engine's scheduler decides which call waits. With a small pool, calls would wait for threads
    instead.
    """
    pool = ThreadPoolExecutor(max(_THREADS, 4 * programs), thread_name_prefix="program")
    asyncio.get_running_loop().set_default_executor(pool)


async def _take(starts: AsyncGenerator[Start, None], most: int) -> list[Start]:
    """Return the next ``most`` starts, or all starts that are left if there are fewer."""
    taken: list[Start] = []
    while len(taken) < most and (start := await anext(starts, None)) is not None:
        taken.append(start)
    return taken


async def _play(
    job: Job,
    runtime: Runtime,
    first: Sequence[Start],
    later: AsyncGenerator[Start, None],
    watch: Watch,
) -> None:
    """Run the ``first`` programs, each with the programs that follow it in the plan. When such a
    sequence has ended, start one of the ``later`` programs.
    """
    taking = asyncio.Lock()

    async def course(start: Start | None) -> None:
        if not job.plan.may_start():  # a signal came before, while the dashboard started
            return
        while start is not None:
            await from_start(start)
            async with taking:
                start = await anext(later, None)

    async def from_start(start: Start) -> None:
        following: Start | None = start
        while following is not None:
            terms = following.terms
            run = runtime.start(
                following.program,
                following.input,
                session=following.session,
                durable=following.durable,
                **terms,
            )
            watch.add(run)
            job.plan.started(following)
            await _finish(run, job)
            following = await job.plan.after(following, run)

    with lent(runtime):
        courses = [asyncio.create_task(course(start)) for start in first]
        watch.show(runtime)
        try:
            await asyncio.gather(*courses)
        finally:
            # If one task has raised an error, the other tasks must not start further programs.
            for task in courses:
                task.cancel()
            await asyncio.wait(courses)


async def _finish(run: Run, job: Job) -> None:
    """Wait until a run has ended; cancel it when its timeout has passed."""
    assert run.task is not None
    _, late = await asyncio.wait([run.task], timeout=job.timeout)
    if late:
        job.timed_out.add(run.id)
        cancel_until_ended(run)
        await asyncio.wait(late)


def _engine(job: Job, runtime: Runtime, snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON description of the engine.

    The field ``table`` has the numbers of programs that the runtime and the engine still track. The
    model and the number of batch slots are the values that the engine reports; if it reports none,
    they are the values of the options.
    """
    options, info = job.options, runtime.executor.info
    return {
        "model": info.model or options.model,
        "settings": {
            "max_num_seqs": options.max_num_seqs if info.slots is None else info.slots,
            "flags": list(options.flags),
            "scheduler": options.scheduler.to_dict(),
        },
        "history": info.history or None,
        "seed": job.seed,
        "replicas": snapshot.get("replicas", []),
        "steps": snapshot.get("steps"),
        "requests": snapshot.get("requests"),
        "sizes": snapshot.get("sizes", {}),
        "table": {"runtime": len(runtime.table), "engine": len(snapshot.get("programs", ()))},
    }


@contextmanager
def lent(runtime: Runtime) -> Iterator[None]:
    """Let LangChain chat models (`ChatAgentRT`) without an engine of their own use this runtime
    during the ``with`` block.

    Does nothing unless the user's file has imported LangChain: importing LangChain takes a second.
    """
    if "langchain_core" not in sys.modules:
        yield
        return
    from agentrt.integrations.langchain.client import RuntimeClient
    from agentrt.integrations.langchain.shared import lend

    with lend(RuntimeClient.borrow(runtime)):
        yield


@asynccontextmanager
async def shown(
    runtime: Runtime, port: int | None, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Serve the dashboard during the ``with`` block, and pass its address to ``tell``.

    Does nothing if ``port`` is None. Raises `ConfigError` if the port is in use.
    """
    if port is None:
        yield
        return
    async with dashboard(runtime, port) as url:
        tell(f"dashboard: {url}")
        yield


@asynccontextmanager
async def dashboard(runtime: Runtime, port: int = 0) -> AsyncIterator[str]:
    """Serve the dashboard of ``runtime`` on the loopback address, and yield the page's URL. The
    server has the APIs of observability and of questions only.

    ``port`` 0 stands for any free port. Raises `ConfigError` if the port is in use.
    """
    from agentrt.serving import observability
    from agentrt.serving.app import opened_app
    from agentrt.serving.listen import Listener
    from agentrt.serving.origins import LOOPBACK
    from agentrt.serving.questions.api import api as questions
    from agentrt.serving.server import Server

    try:
        listener = Listener(LOOPBACK, port)
    except ConfigError as error:
        cause = error.__cause__
        reason = (getattr(cause, "strerror", None) or str(cause)).lower()
        raise ConfigError(
            f"--dashboard {port}: {reason}; use another port, or 0 for any free port"
        ) from error
    server = Server(runtime, models=(runtime.executor.info.model,))
    with closing(listener):
        async with (
            opened_app(server, [questions, observability.api]) as app,
            listener.serving(app, server.bounds),
        ):
            try:
                yield f"{listener.url}/dashboard"
            finally:
                server.draining = True
