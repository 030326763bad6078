"""Reading the options that name sources of tools other than a program's own functions, and loading
the tools of files.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from agentrt.cli.load import import_file, split_target
from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.extras import install_command
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
    """The sources of tools, events and answers.

    ``mcp`` are MCP servers. ``broker`` is an MQTT broker: workers offer tools there, events come
    from it, and humans answer questions over it. ``others`` are transports of other packages.
    """

    mcp: Sequence[Server] = ()
    broker: Broker | None = None
    others: Sequence[ToolTransport] = ()

    def transports(self, tell: Callable[[str], None]) -> list[ToolTransport]:
        """Make the transports to the sources. ``tell`` gets a line when the connection to
        an MCP server is lost or restored.
        """
        transports: list[ToolTransport] = []
        if self.mcp:
            from agentrt.integrations.mcp.tools import McpTools

            transports += [McpTools(server, tell) for server in self.mcp]
        if self.broker is not None:
            from agentrt.integrations.mqtt.tools import MqttTools

            transports.append(MqttTools(self.broker))
        return [*transports, *self.others]

    def events(self) -> EventSource | None:
        """Make the source of events, or return None without a broker."""
        if self.broker is None:
            return None
        from agentrt.integrations.mqtt.events import MqttEvents

        return MqttEvents(self.broker)

    @asynccontextmanager
    async def asking(self, board: QuestionBoard) -> AsyncIterator[None]:
        """Publish the open questions of ``board`` at the broker, and take answers from there,
        during the ``with`` block.
        """
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
    """Read the options that name sources of tools. Raises `UsageError` for an invalid value."""
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
    """Read the options of the broker. Return None without a broker.

    Raises `ConfigError` for invalid options, options that need a broker where there is none, and a
    missing package.
    """
    files = {name: options[f"broker_{name}"] for name in ("ca", "cert", "key")}
    if options["broker"] is None:
        if unused := [f"--broker-{name}" for name, file in files.items() if file is not None]:
            raise ConfigError(f"{unused[0]} needs a broker; add --broker mqtts://HOST")
        return None
    if find_spec("aiomqtt") is None:
        raise ConfigError(f"--broker needs the package aiomqtt; run: {install_command('mqtt')}")
    from agentrt.integrations.mqtt.broker import read_broker

    return read_broker(options["broker"], os.environ, **files)


def read_server_tools(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the tools that replace Anthropic's server tools, by the kind of server
    tool. Raises `ConfigError` for an invalid or repeated option, or if there is no source of tools.
    """
    from agentrt.serving.frontend.anthropic_tools import KINDS

    names: dict[str, str] = {}
    for text in options["server_tools"]:
        kind, equals, name = text.partition("=")
        if not equals or not name or kind not in KINDS:
            kinds = ", ".join(KINDS)
            raise ConfigError(
                f"--server-tool {text!r} is not in the form KIND=NAME, where KIND is one of "
                f"{kinds}; write for example web_search=brave_web_search"
            )
        if kind in names:
            raise ConfigError(
                f"--server-tool {kind} is set twice, to {names[kind]} and {name}; set it once"
            )
        names[kind] = name
    if names and not (options["mcp_files"] or options["tool_urls"] or options["broker"]):
        raise ConfigError("--server-tool needs a source of tools; add --mcp, --tools or --broker")
    return names


def read_triggers(options: Mapping[str, Any]) -> list[Trigger]:
    """Read the triggers, which start programs on events. Raises `ConfigError` for an invalid
    trigger, or if there is no broker.
    """
    if options["on"] and options["broker"] is None:
        raise ConfigError("--on needs a broker for its events; add --broker mqtt://HOST")
    return [_trigger(text, options) for text in options["on"]]


def _trigger(text: str, options: Mapping[str, Any]) -> Trigger:
    from agentrt.integrations.mqtt.topics import check_filter
    from agentrt.serving.triggers import Trigger

    source, colon, rest = text.partition(":")
    topic, equals, program = rest.rpartition("=")
    if source != "mqtt" or not colon or not equals or not program:
        raise ConfigError(
            f"--on {text!r} is not in the form mqtt:TOPIC=PROGRAM; write for example "
            "mqtt:plant/+/alarm=react"
        )
    check_filter(topic)
    return Trigger(topic, program, options["on_max"], options["on_tenant"])


def load_tools(target: str) -> list[Tool]:
    """Load the ``@tool`` functions of a file. If the target has names (``FILE.py:a,b``), load only
    these functions; they need no ``@tool``.

    Raises `ProgramLoadError` if there is no tool or a function cannot be a tool, and
    `ImportFailedError` if the file's own code raised an error.
    """
    path, names = split_target(target)
    if path.suffix != ".py":
        raise ProgramLoadError(f"{path} is not a Python file; name a file that ends in .py")
    module = import_file(path)
    if names is not None:
        loaded = [_named(target, module, name.strip()) for name in names.split(",")]
    else:
        own = (value for value in vars(module).values() if _is_own(value, module))
        loaded = list({id(value): value for value in own}.values())
    if not loaded:
        raise ProgramLoadError(
            f"{path} has no tools; mark functions with @tool, or name them: {path}:NAME,NAME"
        )
    counts = Counter(each.name for each in loaded)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ProgramLoadError(
            f"{path}: two tools have the name {repeated[0]!r}; rename one of them"
        )
    return loaded


def _is_own(value: Any, module: ModuleType) -> bool:
    return isinstance(value, Tool) and value.__module__ == module.__name__


def _named(target: str, module: ModuleType, name: str) -> Tool:
    value = vars(module).get(name)
    if isinstance(value, Tool):
        return value
    if not inspect.isfunction(value):
        known = [key for key, value in vars(module).items() if _may_be(key, value, module)]
        available = ", ".join(known) or "none; define one with @tool"
        raise ProgramLoadError(f"{target}: unknown function {name!r}; available: {available}")
    try:
        return tool(value)
    except ConfigError as error:
        raise ProgramLoadError(f"{target}: {error}") from error


def _may_be(name: str, value: Any, module: ModuleType) -> bool:
    is_own = getattr(value, "__module__", None) == module.__name__
    return is_own and (isinstance(value, Tool) or (inspect.isfunction(value) and name[0] != "_"))
