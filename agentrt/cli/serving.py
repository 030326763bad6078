"""The core of `agentrt serve`: read the job from the command's options, start the engine, serve
until a signal comes, and stop.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvloop
from starlette.middleware.base import BaseHTTPMiddleware

from agentrt.cli.engine_log import EngineLog, opened_output, start_engine
from agentrt.cli.engines import NOTES, Fleet, engine_options, make_executor
from agentrt.cli.execute import lent, make_room
from agentrt.cli.faults import ImportFailedError, StoppedError
from agentrt.cli.journals import JournalPlan, describe_engine, opened_journal, server_journal
from agentrt.cli.load import LoadedGraph, LoadedTarget, load_all, project_of
from agentrt.cli.screen import Screen
from agentrt.cli.signals import SIGNALS, Drain, Interrupts
from agentrt.cli.streams import say
from agentrt.cli.tools import NO_TOOLS, ToolSources, read_server_tools, read_tools, read_triggers
from agentrt.cli.traces import opened_runtime, read_traces
from agentrt.errors import ConfigError, EngineDiedError, ProgramLoadError, UsageError
from agentrt.executors.base import Executor
from agentrt.executors.folders import readable_key
from agentrt.executors.history_folder import data_folder
from agentrt.executors.vllm.options import EngineOptions
from agentrt.runtime import Runtime
from agentrt.scheduler.policies import policy_class
from agentrt.serving.app import load_apis, opened_app
from agentrt.serving.frontend.dispatch import FrontendApp, HTTPFrontend, fronts_of
from agentrt.serving.langgraph.database.connections import Address, reserved
from agentrt.serving.lifetimes import Lifetimes, read_lifetimes
from agentrt.serving.listen import Listener, StartingApp, logged_requests
from agentrt.serving.middleware import DEFAULT_TENANT
from agentrt.serving.origins import Origins, read_cors, read_hosts, read_origins
from agentrt.serving.server import Api, Bounds, Served, ServedGraph, ServedProgram, Server
from agentrt.serving.tenants import KeyRing, Limits, SingleKey, Tenants
from agentrt.serving.tenants.sharing import FairSharing
from agentrt.serving.triggers import Trigger, program_of
from agentrt.serving.triggers import api_with as triggers_api
from agentrt.serving.webhook_rules import WebhookRules, read_webhooks

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_VLLM_KEY = "VLLM_API_KEY"
"""The variable that has the API key of 'vllm serve'."""
_THREADS = 64
"""The number of programs for whose synchronous code there are threads (see `make_room`)."""
_NEW_OBJECTS = 50_000
"""The number of new objects after which a garbage collection starts. With the default of Python
3.11, 700, reading a request's large body takes a second.
"""
_YOUNGER = 1
"""The number of collections of a generation, beyond which the next older generation is collected,
too. A program that has ended is kept for a while, and then only a collection of all generations
frees it. With Python's default, 10, such a collection comes after six million new objects: a
gigabyte of ended programs. It is cheap, because the objects of the start are excluded, and Python
waits until a quarter of the other objects are new.
"""
_SWITCH_S = 0.0005
"""Seconds for which a busy thread may keep the event loop waiting. A request has about ten steps,
and each step may wait this long. With Python's default of 0.005 s, these waits together take as
long as a call.
"""
_ANSWERS_S = 2.0
"""Seconds to wait for answers that are still being sent when the last engine has died."""
FILE = "agentrt.db"
_FOLDER = "serve"

# -- the job ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServeJob:
    """The options of an `agentrt serve`. ``key`` is the key of all clients, if there is no
    ``key_file``. ``drain_s`` limits how long a stop waits for running requests, in seconds.
    """

    engine: EngineOptions
    database: str
    served: Mapping[str, Served] = field(default_factory=dict)
    projects: Sequence[Path] = ()
    seed: int = 0
    traces: str | None = None
    names: Sequence[str] = ()
    key_file: Path | None = None
    key: str | None = field(default=None, repr=False)
    isolate: bool = False
    strict: bool = False
    reminders: bool = True
    submit: bool = False
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    origins: Origins = field(default_factory=Origins)
    webhooks: WebhookRules = field(default_factory=WebhookRules)
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    drain_s: float = 30.0
    tools: ToolSources = NO_TOOLS
    triggers: Sequence[Trigger] = ()
    journal: JournalPlan | None = None
    park_s: float = 60.0
    keep_alive_s: float = 10.0
    early_s: float = 25.0
    server_tools: Mapping[str, str] = field(default_factory=dict)
    middleware: Sequence[Callable[[ASGIApp], ASGIApp]] = ()


def read_job(targets: tuple[str, ...], flags: tuple[str, ...], options: dict[str, Any]) -> ServeJob:
    """Read the options of `agentrt serve`, and load its targets.

    Raises `UsageError` for invalid options, for a file that cannot be loaded, and for targets that
    have a program or graph of the same name, and `ImportFailedError` if a file's own code raised
    an error.
    """
    engine = engine_options(options, flags, metrics=True)
    if options["database"] is None:
        options["database"] = default_database()
    Address.parse(options["database"])  # raises for a wrong address before an engine starts
    served: dict[str, Any] = {}
    for target in targets:
        for name, item in served_of(target, load_all(target)).items():
            if name in served:
                raise ProgramLoadError(
                    f"both {served[name].source} and {target} have a program or graph {name!r}; "
                    "rename one of them, or serve only one"
                )
            served[name] = item
    triggers = read_triggers(options)
    for trigger in triggers:
        program_of(trigger, served)
    idle = options["idle"]
    projects = [path for target in targets if (path := project_of(target)) is not None]
    return ServeJob(
        engine=engine,
        served=served,
        projects=projects,
        seed=options["seed"],
        traces=read_traces(options["traces"], flags),
        names=options["names"],
        key_file=options["api_key_file"],
        key=_environment_key(options["api_key_file"]),
        database=options["database"],
        isolate=options["isolate_cache"],
        strict=options["strict_requests"],
        reminders=options["reminders"] == "in-place",
        submit=options["submit"],
        limits=Limits(calls=options["max_calls"], programs=options["max_programs"]),
        bounds=Bounds(body_bytes=options["max_body"], idle_s=idle, silent_idle_s=idle / 8),
        origins=Origins(
            options["host"],
            read_hosts(options["allowed_hosts"]),
            read_origins(options["cors_origins"]),
            read_cors(projects),
        ),
        webhooks=read_webhooks(options["webhook_hosts"], projects),
        lifetimes=read_lifetimes(projects),
        drain_s=options["drain_timeout"],
        tools=read_tools(options),
        triggers=triggers,
        journal=server_journal(options, served.values()),
        park_s=options["park_after"],
        keep_alive_s=options["keep_alive"],
        early_s=options["early_answers"],
        server_tools=read_server_tools(options),
        middleware=[load_middleware(name) for name in options["middleware"]],
    )


def load_middleware(name: str) -> Callable[[ASGIApp], ASGIApp]:
    """Return the middleware with the import name ``name``, as a function that puts it around an
    application. As under 'vllm serve', it is a class, or an async function with the parameters
    ``request`` and ``call_next``.

    Raises `UsageError` for a name of anything else, and `ImportFailedError` if the module raised an
    error while it was imported. The function raises `ImportFailedError` if the class's own code
    raised an error.
    """
    module_name, dot, attribute = name.rpartition(".")
    if not dot or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"--middleware {name!r}: use the form MODULE.NAME, such as my_auth.Check")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise UsageError(
                f"--middleware {name}: unknown module {missing!r}; install it into agentrt's "
                "environment, or name its folder in PYTHONPATH"
            ) from error
        raise ImportFailedError(f"--middleware {name}") from error
    value = getattr(module, attribute, None)
    if inspect.isclass(value):
        try:
            inspect.signature(value).bind(None)
        except TypeError as error:
            raise UsageError(
                f"--middleware {name}: {attribute} needs other arguments than the "
                f"application ({error}); name a subclass that sets them"
            ) from error
        except ValueError:  # a class in C may have no signature
            pass
        return partial(_made, name, cast("Callable[[ASGIApp], ASGIApp]", value))
    wrong = f"{module_name} has no {attribute!r}"
    if inspect.iscoroutinefunction(value):
        try:
            inspect.signature(value).bind(None, None)
        except TypeError as error:
            wrong = f"{attribute} has other parameters ({error})"
        else:
            return partial(BaseHTTPMiddleware, dispatch=value)
    elif value is not None:
        wrong = f"{attribute} is of type {type(value).__name__}"
    raise UsageError(
        f"--middleware {name}: {wrong}; name a class of ASGI middleware, or an async function with "
        "the parameters request and call_next"
    )


def _made(name: str, middleware: Callable[[ASGIApp], ASGIApp], app: ASGIApp) -> ASGIApp:
    try:
        return middleware(app)
    except Exception as error:  # the class's own code may raise any error
        raise ImportFailedError(f"--middleware {name}") from error


def _environment_key(key_file: Path | None) -> str | None:
    """Return the key of the environment that clients need, as under 'vllm serve'; None if there is
    none, or if the server has a file of keys.

    Raises `UsageError` for a key that has no characters, which no client could send.
    """
    value = os.environ.get(_VLLM_KEY)
    if not value or key_file is not None:
        return None
    if not value.strip():
        raise UsageError(f"{_VLLM_KEY} is blank; set it to a key, or unset it")
    return value.strip()


def served_of(source: str, loaded: Mapping[str, LoadedTarget]) -> dict[str, Served]:
    """Convert loaded programs and graphs of the target ``source`` into the server's types."""
    return {
        name: ServedGraph(item.value, source)
        if isinstance(item, LoadedGraph)
        else ServedProgram(item, source)
        for name, item in loaded.items()
    }


def default_database(working_folder: Path | None = None) -> str:
    """Return the address of the database for servers that are started in ``working_folder``, by
    default the current folder.

    The database is a file below the user's folder for data. There each working folder has a folder
    of its own, so that servers of different projects do not share threads. The database is in the
    working folder itself if a server of an earlier version has left a database there, or if the
    folder for data cannot be made.
    """
    here = (working_folder or Path.cwd()).resolve()
    if not (here / FILE).exists():
        try:
            folder = data_folder() / _FOLDER / readable_key(here.name, str(here), "root")
            folder.mkdir(parents=True, exist_ok=True)
        except (ConfigError, OSError):
            pass
        else:
            return f"sqlite:{folder / FILE}"
    return f"sqlite:{here / FILE}"


# -- the server ------------------------------------------------------------------------------


def serve_job(job: ServeJob, fleet: Fleet, listener: Listener) -> int:
    """Serve until a signal ends the server, then raise `StoppedError`."""
    drain = Drain(*SIGNALS)
    keys: KeyRing | SingleKey | None = None
    if job.key_file is not None:
        keys = KeyRing(job.key_file, job.limits, notice=say)
    elif job.key is not None:
        keys = SingleKey(job.key, DEFAULT_TENANT)
    with opened_output(verbose=job.engine.verbose) as (log, screen, last_words):
        serving = Serving(job, listener, keys, drain, screen, log)
        executor = make_executor(job.engine, fleet, screen.announce, restarts=True)
        if note := NOTES.get(fleet.kind):
            screen.announce(note)
        Interrupts(last_words, drain, uvloop.new_event_loop).run(serving.run(executor))
    if drain.first is not None:
        limit = f"{job.drain_s:g} s (--drain-timeout)"
        how = f"requests that had not ended after {limit} were cut off"
        if serving.is_drained:
            how = "all running requests have ended"
        raise StoppedError(drain.first, f"stopped: {how}")
    return 0


def settle() -> None:
    """Tune the interpreter for a server that has started."""
    # Exclude the objects of the start from garbage collection, as vLLM's server does.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, _YOUNGER, _YOUNGER)
    sys.setswitchinterval(_SWITCH_S)


@dataclass(slots=True)
class Serving:
    """A running server: its job, its listener, its keys, and its output. ``is_drained`` is False if
    the server stopped before all requests had ended.
    """

    job: ServeJob
    listener: Listener
    keys: KeyRing | SingleKey | None
    drain: Drain
    screen: Screen
    log: EngineLog
    starting: StartingApp = field(default_factory=StartingApp)
    is_drained: bool = True

    async def run(self, executor: Executor) -> None:
        """Start the engine, serve until a signal comes, finish the requests, and stop the engine.

        Raises the error of the engine if it does not start, the error of an API of the server, and
        `EngineDiedError` if all engines have died.
        """
        job, keys = self.job, self.keys
        limits_of = dict if keys is None else lambda: keys.limits
        tenants = Tenants(time.monotonic, job.limits, limits_of)
        shared = FairSharing(
            executor,
            tenants,
            policy=policy_class(job.engine.scheduler.policy),
            is_shared=job.key_file is not None,
            isolate=job.isolate,
        )
        apis = [*load_apis(job.projects), triggers_api(job.triggers, say)]
        async with AsyncExitStack() as stack:
            # From now on, health checks are answered.
            listening = self.listener.serving(self.starting, job.bounds)
            http = await stack.enter_async_context(listening)
            stack.callback(self.starting.close)
            # Reserve the database before the engine's start, which takes minutes.
            await stack.enter_async_context(reserved(Address.parse(job.database)))
            served = await self._prepared(stack)
            journal = await stack.enter_async_context(opened_journal(job.journal))
            opened = opened_runtime(
                shared,
                job.traces,
                ask_human=None,
                tools=job.tools.transports(say),
                events=job.tools.events(),
                seed=job.seed,
                model_names=job.names,
                journal=journal,
                reminders=job.reminders,
            )
            await self._run(stack.enter_context(opened), tenants, apis, served, http)

    async def _prepared(self, stack: AsyncExitStack) -> Mapping[str, Served]:
        """Build the graphs and return everything that is served.

        Called before the engine starts, so that a faulty graph stops the command early. Raises
        `ProgramLoadError`.
        """
        job = self.job
        if not any(isinstance(served, ServedGraph) for served in job.served.values()):
            return job.served
        from agentrt.serving.langgraph.deployment import key_findings, prepared

        keys = {path: key_findings(path) for path in job.projects}
        users = any(finding.subject == "auth" for findings in keys.values() for finding in findings)
        for path, findings in keys.items():
            for finding in findings:
                if finding.served is False:
                    say(f"{path}: {finding.subject} is not supported: {finding.why}")
        ready, graph_findings = await prepared(job.served, stack, users=users)
        for finding in graph_findings:
            say(f"{finding.subject}: {finding.why}")
        return ready

    async def _run(
        self,
        runtime: Runtime,
        tenants: Tenants,
        apis: Sequence[Api],
        served: Mapping[str, Served],
        http: asyncio.Task[None],
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
                    with self._logged(fronts):
                        await self._serve(server, self._wrapped(app), fronts, http)
        finally:
            await runtime.close()

    def _logged(self, fronts: Sequence[HTTPFrontend]) -> AbstractContextManager[None]:
        """Return a context in which each request is a line on stderr, as under 'vllm serve', if the
        command has ``--verbose`` and vLLM's flags do not turn these lines off.
        """
        flags = fronts[0].args if fronts else None
        if not self.job.engine.verbose or getattr(flags, "disable_uvicorn_access_log", False):
            return nullcontext()
        hidden = getattr(flags, "disable_access_log_for_endpoints", None) or ""
        return logged_requests(say, {path.strip() for path in hidden.split(",")})

    def _wrapped(self, app: ASGIApp) -> ASGIApp:
        """Return the application inside the middleware of traces and of the user."""
        if self.job.traces is not None:
            from agentrt.integrations.opentelemetry import RemoteParents

            app = RemoteParents(app)
        for middleware in self.job.middleware:
            app = middleware(app)
        return app

    def _server(
        self,
        runtime: Runtime,
        tenants: Tenants,
        fronts: Sequence[HTTPFrontend],
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

    async def _serve(
        self,
        server: Server,
        app: ASGIApp,
        fronts: Sequence[HTTPFrontend],
        serving: asyncio.Task[None],
    ) -> None:
        """Serve ``app`` until a signal comes or all engines have died. ``serving`` is the task of
        the listener, which ends with this method.
        """
        stop = asyncio.Event()
        stopping = asyncio.create_task(stop.wait(), name="signals")
        gone = asyncio.create_task(server.runtime.executor.given_up(), name="engines")
        ready = asyncio.create_task(self.listener.ready.wait(), name="listener")
        tasks = [serving, stopping, gone, ready]

        def drain(signal: str) -> None:
            say(
                f"{signal}: finishing running requests, accepting no more; a second signal stops "
                "the server at once"
            )
            stop.set()

        try:
            with self.drain.possible(drain):
                settle()
                self.starting.open(app)
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if ready.done():
                    self._announce(server, fronts)
                    tasks.remove(ready)
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    # Without an engine no call can end: wait only for answers that are being sent.
                    self.is_drained = await self.listener.drain(
                        server, _ANSWERS_S if gone.done() else self.job.drain_s
                    )
                await serving
                if gone.done():
                    raise EngineDiedError(f"all engines have died: {gone.result()}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _announce(self, server: Server, fronts: Sequence[HTTPFrontend]) -> None:
        """Print the models, the places of the database and the journal, and the addresses of the
        server, which is ready.
        """
        url, page = self.listener.url, self.listener.browser_url
        for front in fronts:
            say(f"model {front.names[0]}: {front.args.family}")
        say(f"threads, runs and answers are stored in {_place_of(server.database)}")
        if (journal := self.job.journal) is not None:
            say(f"calls, tools and answers of programs are recorded in {journal.place}")
        names = ", ".join([*server.models, *server.served]) or "no model, program or graph"
        base = url if self.listener.uds is None else self.listener.root_path
        api = f"OpenAI API: {base}/v1" if server.models else "no model, so no OpenAI API"
        say(f"ready: serving {names} at {url} ({api})")
        if self.listener.uds is None:
            say(f"chat in a browser: {page}/")
            say(f"dashboard in a browser: {page}/dashboard")


def _place_of(database: str) -> str:
    """Return where a database is: a file's absolute path, or a URL without its password."""
    address = Address.parse(database)
    return str(address) if address.file is None else str(address.file.absolute())
