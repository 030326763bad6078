"""The job of `agentrt serve`, made from the command's options, and its default database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrt.cli.engines import engine_options
from agentrt.cli.journals import JournalPlan, server_journal
from agentrt.cli.load import LoadedGraph, LoadedTarget, load_all, project_of
from agentrt.cli.tools import NO_TOOLS, ToolSources, read_server_tools, read_tools, read_triggers
from agentrt.cli.traces import read_traces
from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.executors.folders import readable_key
from agentrt.executors.history_folder import data_folder
from agentrt.executors.vllm.options import EngineOptions
from agentrt.serving.langgraph.database.connections import Address
from agentrt.serving.lifetimes import Lifetimes, read_lifetimes
from agentrt.serving.origins import Origins, read_cors, read_hosts, read_origins
from agentrt.serving.server import Bounds, Served, ServedGraph, ServedProgram
from agentrt.serving.tenants import Limits
from agentrt.serving.triggers import Trigger, program_of
from agentrt.serving.webhook_rules import WebhookRules, read_webhooks


@dataclass(frozen=True, slots=True)
class ServeJob:
    """The options of an `agentrt serve`. ``drain_s`` limits how long a stop waits for running
    requests, in seconds.
    """

    engine: EngineOptions
    database: str
    served: Mapping[str, Served] = field(default_factory=dict)
    projects: Sequence[Path] = ()
    seed: int = 0
    traces: str | None = None
    name: str | None = None
    key_file: Path | None = None
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
        name=options["served_model_name"],
        key_file=options["api_key_file"],
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
    )


def served_of(source: str, loaded: Mapping[str, LoadedTarget]) -> dict[str, Served]:
    """Convert loaded programs and graphs of the target ``source`` into the server's types."""
    return {
        name: ServedGraph(item.value, source)
        if isinstance(item, LoadedGraph)
        else ServedProgram(item, source)
        for name, item in loaded.items()
    }


FILE = "agentrt.db"
_FOLDER = "serve"


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
