"""Where programs find tools beside their own functions: what the command line says of it."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentrt.cli.load import import_file, split_target
from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.interrupts import Tool, tool

if TYPE_CHECKING:
    from agentrt.integrations.mcp import Server
    from agentrt.integrations.mqtt.broker import Broker
    from agentrt.integrations.mqtt.questions import QuestionBoard
    from agentrt.interrupts import ToolTransport
    from agentrt.interrupts.events import EventSource
    from agentrt.serving.triggers import Trigger


@dataclass(frozen=True, slots=True)
class ToolSources:
    """Who offers tools: ``mcp`` are MCP servers. At ``broker`` there are workers, events, and
    people who answer questions. ``others`` are transports of other packages.
    """

    mcp: Sequence[Server] = ()
    broker: Broker | None = None
    others: Sequence[ToolTransport] = ()

    def transports(self, tell: Callable[[str], None]) -> list[ToolTransport]:
        """The transports to them; ``tell`` gets a line when one is lost, or comes back."""
        found: list[ToolTransport] = []
        if self.mcp:
            from agentrt.integrations.mcp.transport import McpTransport

            found += [McpTransport(server, tell) for server in self.mcp]
        if self.broker is not None:
            from agentrt.integrations.mqtt.tools import MqttTools

            found.append(MqttTools(self.broker))
        return [*found, *self.others]

    def events(self) -> EventSource | None:
        """Where events come from, if anything sends some."""
        if self.broker is None:
            return None
        from agentrt.integrations.mqtt.events import MqttEvents

        return MqttEvents(self.broker)

    @asynccontextmanager
    async def asking(self, board: QuestionBoard) -> AsyncIterator[None]:
        """Meanwhile the open questions on ``board`` are at the broker, and are answered there."""
        if self.broker is None:
            yield
            return
        from agentrt.integrations.mqtt.questions import MqttQuestions

        questions = MqttQuestions(self.broker, board)
        await questions.open()
        try:
            yield
        finally:
            await questions.close()


NO_TOOLS = ToolSources()


def read_tools(options: Mapping[str, Any]) -> ToolSources:
    """What the options of a command say. Raises `UsageError` for what cannot be."""
    mcp: Sequence[Server] = ()
    if options["mcp_files"]:
        from agentrt.integrations.mcp import read_servers

        mcp = read_servers(options["mcp_files"])
    others: Sequence[ToolTransport] = ()
    if options["tool_urls"]:
        from agentrt.interrupts.toolbox import transport_at

        others = [transport_at(url) for url in options["tool_urls"]]
    return ToolSources(mcp, read_broker_options(options), others)


def read_broker_options(options: Mapping[str, Any]) -> Broker | None:
    """The broker. Raises `ConfigError` for one that cannot be."""
    files = {name: options[f"broker_{name}"] for name in ("ca", "cert", "key")}
    if options["broker"] is None:
        if given := [f"--broker-{name}" for name, file in files.items() if file is not None]:
            raise ConfigError(f"{given[0]} is for a broker: give --broker mqtts://…, too")
        return None
    if find_spec("aiomqtt") is None:
        raise ConfigError("--broker needs the package aiomqtt; install agentrt[mqtt]")
    from agentrt.integrations.mqtt.broker import read_broker

    return read_broker(options["broker"], os.environ, **files)


def read_server_tools(options: Mapping[str, Any]) -> dict[str, str]:
    """The tools that stand for those of Anthropic's servers, by their kinds. Raises `ConfigError`
    for what cannot be.
    """
    from agentrt.serving.frontend.anthropic_tools import KINDS

    names: dict[str, str] = {}
    for text in options["server_tools"]:
        kind, equals, name = text.partition("=")
        if not equals or not name or kind not in KINDS:
            kinds = ", ".join(KINDS)
            raise ConfigError(
                f"--server-tool {text!r}: give KIND=NAME with one of {kinds}, as in "
                "web_search=brave_web_search"
            )
        if kind in names:
            raise ConfigError(f"--server-tool {kind} is given twice: {names[kind]} and {name}")
        names[kind] = name
    if names and not (options["mcp_files"] or options["tool_urls"] or options["broker"]):
        raise ConfigError(
            "--server-tool names a tool of --mcp, --tools or --broker: give that, too"
        )
    return names


def read_triggers(options: Mapping[str, Any]) -> list[Trigger]:
    """What starts programs by itself. Raises `ConfigError` for what cannot be."""
    if options["on"] and options["broker"] is None:
        raise ConfigError("--on hears of events at a broker: give --broker mqtt://HOST")
    return [_trigger(text, options) for text in options["on"]]


def _trigger(text: str, options: Mapping[str, Any]) -> Trigger:
    from agentrt.integrations.mqtt.topics import check_filter
    from agentrt.serving.triggers import Trigger

    source, colon, rest = text.partition(":")
    topic, equals, program = rest.rpartition("=")
    if source != "mqtt" or not colon or not equals or not program:
        raise ConfigError(f"--on {text!r}: give mqtt:TOPIC=PROGRAM, as in mqtt:plant/+/alarm=react")
    check_filter(topic)
    return Trigger(topic, program, options["on_max"], options["on_tenant"])


def load_tools(target: str) -> list[Tool]:
    """The file's ``@tool`` functions; with names behind it, those, and plain functions too.

    Raises `ProgramLoadError` if there is none, or for what cannot be a tool, and
    `ImportFailedError` if the file's own code raised.
    """
    path, names = split_target(target)
    if path.suffix != ".py":
        raise ProgramLoadError(f"{path}: tools are in a Python file")
    module = import_file(path)
    if names is not None:
        found = [_named(target, module, name.strip()) for name in names.split(",")]
    else:
        found = list(
            {id(one): one for one in vars(module).values() if _is_own(one, module)}.values()
        )
    if not found:
        raise ProgramLoadError(
            f"{path}: no tool in it; mark functions with @tool, or name some: {path}:NAME,NAME"
        )
    if twice := {one.name for one in found if [other.name for other in found].count(one.name) > 1}:
        raise ProgramLoadError(f"{path}: two tools are called {twice.pop()!r}; rename one")
    return found


def _is_own(value: Any, module: ModuleType) -> bool:
    return isinstance(value, Tool) and value.__module__ == module.__name__


def _named(target: str, module: ModuleType, name: str) -> Tool:
    value = vars(module).get(name)
    if isinstance(value, Tool):
        return value
    if not inspect.isfunction(value):
        known = [one for one, value in vars(module).items() if _may_be(one, value, module)]
        there = f"there is: {', '.join(known)}" if known else "it has none"
        raise ProgramLoadError(f"{target}: no function {name!r} in it; {there}")
    try:
        return tool(value)
    except ConfigError as error:
        raise ProgramLoadError(f"{target}: {error}") from error


def _may_be(name: str, value: Any, module: ModuleType) -> bool:
    is_own = getattr(value, "__module__", None) == module.__name__
    return is_own and (isinstance(value, Tool) or (inspect.isfunction(value) and name[0] != "_"))
