"""`agentrt run` with tools beside a file's own functions, and with tools in processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.interrupts import Tool, ToolContext, ToolRequest, ToolTransport
from agentrt.interrupts.toolbox import ENTRY_POINT_GROUP
from agentrt.request import ToolSpec
from tests.cli.conftest import Run, Write

# One loads a file that is called json.py.
pytestmark = pytest.mark.usefixtures("clean_imports")


class ListedTools(ToolTransport):
    """Another package's transport: a list of this name has one tool."""

    def __init__(self, url: str) -> None:
        self.name = url.partition("://")[2]
        if not self.name:
            raise ConfigError("a list has a name")

    async def tools(self) -> Sequence[Tool]:
        return [Tool("fetch", spec=ToolSpec("fetch", "", {"type": "object"}), transport=self)]

    async def call(self, request: ToolRequest, context: ToolContext) -> Any:
        return f"{request.arguments['what']} from {self.name}"


@pytest.fixture(autouse=True)
def points(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [
        EntryPoint("listed", f"{__name__}:ListedTools", ENTRY_POINT_GROUP),
        EntryPoint("absent", "agentrt.no_such_module:ListedTools", ENTRY_POINT_GROUP),
        EntryPoint("text", "builtins:str", ENTRY_POINT_GROUP),
    ]

    def entry_points(group: str) -> list[EntryPoint]:
        assert group == "agentrt.tool_transports"
        return made

    monkeypatch.setattr("agentrt.interrupts.toolbox.entry_points", entry_points)


FETCH = """
@program
async def fetch(ctx):
    names = [tool.name for tool in await ctx.tools()]
    return [names, await ctx.tool("lab/fetch", what="glue")]
"""


def test_another_packages_transport_brings_its_tools(run_program: Run) -> None:
    """Two have a tool of one name: each is found by its transport's."""
    out = run_program(FETCH, "--tools", "listed://lab", "--tools", "listed://attic").out
    assert "lab__fetch" in out
    assert "attic__fetch" in out
    assert "glue from lab" in out


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (
            "rack://lab",
            "unknown transport of tools 'rack' (available: absent, listed, text); for MCP",
        ),
        ("lab", "--tools 'lab' is not a URL; use one such as lab://…"),
        ("absent://x", "(agentrt.no_such_module:ListedTools) cannot be loaded: ModuleNotFound"),
        ("text://x", "transport 'text' (builtins:str) returns str, not a ToolTransport"),
        ("me:secret@lab", "--tools '…@lab' is not a URL; use one such as SCHEME://…"),
        ("rack://me:secret@lab", "--tools 'rack://…@lab': unknown transport of tools"),
        ("text://me:secret@x", "--tools 'text://…@x': transport 'text' (builtins:str) returns str"),
        ("listed://", "--tools 'listed://': a list has a name"),
        ("listed://process", "two transports of tools have the same name: thread, process"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(run_program: Run, url: str, says: str) -> None:
    ran = run_program(FETCH, "--tools", url)
    assert ran.code == 2
    assert says in " ".join(ran.err.split())
    assert "secret" not in ran.err
    assert "Traceback" not in ran.err


IN_A_PROCESS = """
from agentrt import tool
from dataclasses import dataclass
import os

@dataclass
class Hole:
    mm: int
    pid: int = 0

@tool(isolation="process")
def widen(hole: Hole) -> Hole:
    return Hole(2 * hole.mm, os.getpid())

@program
async def drill(ctx):
    hole = await ctx.tool(widen, Hole(3))
    assert type(hole) is Hole and hole.pid != os.getpid()
    return hole.mm
"""


def test_a_files_own_tools_run_in_processes(run_program: Run) -> None:
    assert run_program(IN_A_PROCESS).out == "6\n"


def test_a_file_whose_name_is_taken_works_too(write: Write, command: Run) -> None:
    """It has a module name of its own, which a worker cannot import, and not its file's."""
    path = write(IN_A_PROCESS)
    taken = path.with_name("json.py")
    os.replace(path, taken)
    assert command("run", taken).out == "6\n"
