"""The names that others build on are those of `public_names.txt`, so that a change is deliberate.

`python -m tests.test_public_names` writes the file anew; docs/versions.md says what a change means
for the version. Of HTTP it has the server's own routes: those of models are vLLM's.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from agentrt.cli.app import app

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("public_names.txt")
REWRITE = "python -m tests.test_public_names"
HEAD = f"# Public names: docs/versions.md. Written by: {REWRITE}\n"
MODULES: dict[str, tuple[str, ...]] = {
    "agentrt": (),
    "agentrt.batch": (),
    "agentrt.contexts": (),
    "agentrt.engines": (),
    "agentrt.errors": (),
    "agentrt.executors.history": ("read",),
    "agentrt.executors.vllm": (),
    "agentrt.integrations.langchain": ("ChatAgentRT",),
    "agentrt.integrations.langgraph": ("instrument", "uninstrument"),
    "agentrt.integrations.mcp": (),
    "agentrt.integrations.mqtt": (),
    "agentrt.integrations.opentelemetry": ("ProgramTracer", "traced_runtime"),
    "agentrt.interrupts": (),
    "agentrt.journal": ("register",),
    "agentrt.router": ("ReplicaView", "Router", "RouterCall", "make_router", "router_names"),
    "agentrt.scheduler.policies": (),
    "agentrt.training": (),
}
"""Which modules, and which names of them; () is all that they say they have."""
MEASURING = ("calibrate", "simulate")
"""Commands that carry no promise."""
GROUPS = (
    "agentrt.executors.vllm.options",
    "agentrt.interrupts.toolbox",
    "agentrt.router",
    "agentrt.scheduler.policies",
)
NEEDS_ENGINE = {"agentrt.executors.vllm.ProgramScheduler"}
"""Not looked into: vLLM would be loaded."""


# -- Python ----------------------------------------------------------------------------------------


def python_names() -> Iterator[str]:
    seen: set[int] = set()
    for module, names in MODULES.items():
        home = import_module(module)
        for name in names or getattr(home, "__all__", None) or own_classes(home):
            full = f"{module}.{name}"
            if full in NEEDS_ENGINE or id(value := getattr(home, name)) in seen:
                yield full
            else:
                seen.add(id(value))
                yield from described(full, value)


def own_classes(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def described(name: str, value: Any) -> Iterator[str]:
    """The name with its parameters, and the public members that a class has from agentrt. What
    runtimes ask of executors is between them.
    """
    taken = parameters(value)
    yield name + shown(taken)
    if inspect.isclass(value) and not name.startswith("agentrt.engines."):
        members = {member for one in ours(value) for member in vars(one) if member[0] != "_"}
        for member in members - {one.name for one in taken or ()} - {*dir(BaseModel)}:
            static = inspect.getattr_static(value, member)
            yield f"{name}.{member}{shown(parameters(static, skip=1))}"


def ours(kind: type) -> list[type]:
    return [one for one in kind.__mro__ if one.__module__.startswith("agentrt.")]


def parameters(value: Any, skip: int = 0) -> list[inspect.Parameter] | None:
    """None for what is not called, or made as others than agentrt say."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if inspect.isclass(value):
        if getattr(value, "_is_protocol", False):
            return None
        if issubclass(value, Exception) and not any("__init__" in vars(one) for one in ours(value)):
            return None
    if not callable(value):
        return None
    taken = [*inspect.signature(value).parameters.values()][skip:]
    if inspect.isclass(value) and issubclass(value, BaseModel):  # others add fields of theirs
        fields = {name for one in ours(value) for name in vars(one).get("__annotations__", ())}
        return [one for one in taken if one.name in fields]
    return [one for one in taken if one.name[0] != "_"]


def shown(taken: list[inspect.Parameter] | None) -> str:
    """Such as ``(prompt, *, stream=)``."""
    if taken is None:
        return ""
    words: list[str] = []
    for one in taken:
        if one.kind is one.KEYWORD_ONLY and not any(word[0] == "*" for word in words):
            words.append("*")
        stars = str(one)[: str(one).index(one.name)]
        words.append(f"{stars}{one.name}{'' if one.default is one.empty else '='}")
    return f"({', '.join(words)})"


# -- the command line, packages of others, HTTP ----------------------------------------------------


def commands(command: click.Command, name: str) -> Iterator[str]:
    yield name
    for parameter in command.params:
        shown = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
        yield from (f"{name} {one}" for one in shown if one)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for sub in command.list_commands(context):
            if sub not in MEASURING and (found := command.get_command(context, sub)) is not None:
                yield from commands(found, f"{name} {sub}")


def entry_points() -> Iterator[str]:
    """The groups that packages of others announce themselves in, and what agentrt announces."""
    yield from (f"group {import_module(module).ENTRY_POINT_GROUP}" for module in GROUPS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    announced = {"scripts": project["scripts"], **project.get("entry-points", {})}
    for group, points in announced.items():
        yield from (f"{group}: {name} = {target}" for name, target in points.items())


async def routes() -> list[str]:
    from starlette.routing import Route, WebSocketRoute

    from agentrt import Runtime
    from agentrt.serving.app import load_apis
    from agentrt.serving.server import Server
    from tests.doubles.scripted import ScriptedExecutor

    found = []
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(ScriptedExecutor()) as runtime, AsyncExitStack() as stack:
            server = Server(runtime, ("m",), database=f"sqlite:{folder}/a.db", submit=True)
            for api in load_apis():
                for one in (await stack.enter_async_context(api(server))).routes:
                    assert isinstance(one, Route | WebSocketRoute)
                    methods = {"WEBSOCKET"} if isinstance(one, WebSocketRoute) else one.methods
                    found += [f"{way} {one.path}" for way in (methods or {"ANY"}) - {"HEAD"}]
    return found


def written() -> str:
    sections = {
        "Python": python_names(),
        "Commands": commands(app, "agentrt"),
        "Entry points": entry_points(),
        "HTTP routes": asyncio.run(routes()),
    }
    body = (f"\n[{name}]\n" + "\n".join(sorted({*lines})) for name, lines in sections.items())
    return HEAD + "\n".join(body) + "\n"


def test_the_public_names_are_those_of_the_file() -> None:
    assert written().splitlines() == FILE.read_text("utf-8").splitlines(), REWRITE


if __name__ == "__main__":
    FILE.write_text(written(), encoding="utf-8")
