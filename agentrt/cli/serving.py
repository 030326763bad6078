"""Runs a server from its engine's start to its end, for `agentrt serve`."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvloop

from agentrt.cli.engine_log import EngineLog, opened_output, start_engine
from agentrt.cli.engines import NOTES, Fleet, make_executor
from agentrt.cli.execute import lent, make_room
from agentrt.cli.faults import StoppedError
from agentrt.cli.journals import describe_engine, opened_journal
from agentrt.cli.screen import Screen
from agentrt.cli.serve_job import ServeJob
from agentrt.cli.signals import SIGNALS, Drain, Interrupts
from agentrt.cli.streams import say
from agentrt.cli.traces import opened_runtime
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Executor
from agentrt.runtime import Runtime
from agentrt.scheduler.policies import policy_class
from agentrt.serving.app import load_apis, opened_app
from agentrt.serving.frontend.dispatch import Front, FrontendApp, fronts_of
from agentrt.serving.listen import Listener
from agentrt.serving.server import Api, Served, ServedGraph, Server
from agentrt.serving.tenants import KeyRing, Tenants
from agentrt.serving.tenants.admission import AdmissionController
from agentrt.serving.triggers import api_with as triggers_api

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_THREADS = 64
"""A quarter of the threads that programs' synchronous code may block at once."""
_NEW_OBJECTS = 50_000
"""A collection for so many new objects: Python's 700 make that of a large body take a second."""
_SWITCH_S = 0.0005
"""For so long a thread that works holds the event loop up when it has something to do: each of a
request's ten steps may wait so long, and with Python's own 0.005 s all of them as long as a call.
"""
_ANSWERS_S = 2.0
"""How long answers may be on their way from a server that has no engine any more (seconds)."""


def serve_job(job: ServeJob, fleet: Fleet, listener: Listener) -> int:
    """Serve until a signal ends it. Raises `StoppedError` then."""
    drain, keys = Drain(*SIGNALS), None
    if job.key_file is not None:
        keys = KeyRing(job.key_file, job.limits, notice=say)
    with opened_output(verbose=job.engine.verbose) as (log, screen, last_words):
        serving = Serving(job, listener, keys, drain, screen, log)
        executor = make_executor(job.engine, fleet, screen.announce, restarts=True)
        if note := NOTES.get(fleet.kind):
            screen.announce(note)
        Interrupts(last_words, drain, uvloop.new_event_loop).run(serving.run(executor))
    if drain.first is not None:
        raise StoppedError(drain.first, "stopped: what ran has ended")
    return 0


def settle() -> None:
    """Set the interpreter up for a server whose start is over."""
    # What is here by now stays: no collection need look at it, as in vLLM's server.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    sys.setswitchinterval(_SWITCH_S)


@dataclass(slots=True)
class Serving:
    """A server that runs: its listener, what drains it, and where its start is shown."""

    job: ServeJob
    listener: Listener
    keys: KeyRing | None
    drain: Drain
    screen: Screen
    log: EngineLog

    async def run(self, executor: Executor) -> None:
        """Start the engine, serve until a signal comes, finish, and stop the engine.

        Raises what the engine's start and the APIs raise.
        """
        job, keys = self.job, self.keys
        limits_of = dict if keys is None else lambda: keys.limits
        tenants = Tenants(time.monotonic, job.limits, limits_of)
        admission = AdmissionController(
            executor,
            tenants,
            policy=policy_class(job.engine.scheduler.policy),
            is_shared=keys is not None,
            isolate=job.isolate,
        )
        apis = [*load_apis(job.projects), triggers_api(job.triggers, say)]
        async with AsyncExitStack() as stack:
            served = await self._prepared(stack)
            journal = await stack.enter_async_context(opened_journal(job.journal))
            opened = opened_runtime(
                admission,
                job.traces,
                ask_human=None,
                tools=job.tools.transports(say),
                events=job.tools.events(),
                seed=job.seed,
                model_names=() if job.name is None else (job.name,),
                journal=journal,
                reminders=job.reminders,
            )
            await self._run(stack.enter_context(opened), tenants, apis, served)

    async def _prepared(self, stack: AsyncExitStack) -> Mapping[str, Served]:
        """What is served, with its graphs made: one that cannot be is found before the engine
        starts. Raises `ProgramLoadError`.
        """
        job = self.job
        if not any(isinstance(one, ServedGraph) for one in job.served.values()):
            return job.served
        from agentrt.serving.langgraph.deployment import key_findings, prepared

        keys = {path: key_findings(path) for path in job.projects}
        users = any(one.what == "auth" for found in keys.values() for one in found)
        for path, found in keys.items():
            for one in found:
                if one.served is False:
                    say(f"{path}: {one.what} is not supported: {one.why}")
        ready, findings = await prepared(job.served, stack, users=users)
        for one in findings:
            say(f"{one.what}: {one.why}")
        return ready

    async def _run(
        self,
        runtime: Runtime,
        tenants: Tenants,
        apis: Sequence[Api],
        served: Mapping[str, Served],
    ) -> None:
        job = self.job
        make_room(_THREADS)
        async with self.screen.showing():
            await start_engine(runtime, self.screen.progress, self.log)
        try:
            await describe_engine(runtime, job.engine.scheduler)
            with lent(runtime):
                fronts = fronts_of(await runtime.frontend())
                server = self._server(runtime, tenants, fronts, served)
                front = FrontendApp(server, fronts, strict=job.strict)
                async with (
                    opened_app(server, apis, front) as app,
                    job.tools.asking(server.questions),
                ):
                    await self._serve(server, self._traced(app), fronts)
        finally:
            await runtime.close()

    def _traced(self, app: ASGIApp) -> ASGIApp:
        if self.job.traces is None:
            return app
        from agentrt.integrations.opentelemetry import RemoteParents

        return RemoteParents(app)

    def _server(
        self,
        runtime: Runtime,
        tenants: Tenants,
        fronts: Sequence[Front],
        served: Mapping[str, Served],
    ) -> Server:
        job = self.job
        return Server(
            runtime,
            tuple(name for front in fronts for name in front.names),
            served,
            job.database,
            tenants=tenants,
            keys=self.keys,
            bounds=job.bounds,
            submit=job.submit,
            origins=job.origins,
            webhooks=job.webhooks,
            lifetimes=job.lifetimes,
            park_s=job.park_s,
            keep_alive_s=job.keep_alive_s,
            early_s=job.early_s,
            server_tools=job.server_tools,
        )

    async def _serve(self, server: Server, app: ASGIApp, fronts: Sequence[Front]) -> None:
        stop = asyncio.Event()
        serving = asyncio.create_task(self.listener.serve(app, server.bounds), name="http")
        stopping = asyncio.create_task(stop.wait(), name="signals")
        gone = asyncio.create_task(server.runtime.executor.given_up(), name="engines")
        tasks = [serving, stopping, gone]

        def drain(signal: str) -> None:
            say(f"{signal}: finishing what runs and taking nothing new; again to stop now")
            stop.set()

        try:
            with self.drain.possible(drain):
                for front in fronts:
                    say(f"{front.names[0]}: {front.args.family}")
                settle()
                say(f"threads, runs and answers are kept in {_place_of(server.database)}")
                say(self._announcement(server))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    # Without an engine nothing is to be finished: only answers are on their way.
                    await self.listener.drain(
                        server, _ANSWERS_S if gone.done() else self.job.drain_s
                    )
                await serving
                if gone.done():
                    raise EngineDiedError(f"no engine is left: {gone.result()}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _announcement(self, server: Server) -> str:
        url = self.listener.url
        what = ", ".join([*server.models, *server.served])
        chat = "; in a browser: a chat" if server.served else ""
        api = f"OpenAI API: {url}/v1" if server.models else "no model's API"
        return f"serving {what} at {url} ({api}{chat})"


def _place_of(database: str) -> str:
    """Where a database is, for people: a file's whole path, or a URL without its password."""
    from agentrt.serving.langgraph.database.connections import Address

    address = Address.parse(database)
    return str(address) if address.file is None else str(address.file.absolute())
