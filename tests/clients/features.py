"""The table of docs/clients.md: what works with which coding agent, as the tests here show it.

A test says by the marker ``shows`` which cells it fills: ``@pytest.mark.shows("a tool call",
claude="works")``. With ``AGENTRT_CLIENTS_TABLE=FILE``, a run of these tests writes the table of the
tests that it ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import pytest

from tests.clients.processes import NODE_CLIENTS

Cells = Mapping[tuple[str, str], str]
"""The texts of the table's cells, by feature and client."""

TABLE = "AGENTRT_CLIENTS_TABLE"
MARKER = "shows"
NOT_TESTED = "not tested"
CLIENTS = {
    "claude": ("Claude Code", "@anthropic-ai/claude-code"),
    "codex": ("Codex", "@openai/codex"),
    "opencode": ("OpenCode", "opencode-ai"),
}
"""The name of each client in the table, and its package."""
TOOL_CALL = "a tool call"
TURNS = "several turns"
SUB_AGENT = "a sub-agent belongs to its session's program"
RESUMED = "a session is resumed"
COMPACTED = "the history is compacted before the window is full"
CANCELLED = "a cancel aborts the call in the engine"
LONG_TOOL = "while a long tool runs, agentrt shows that the program waits for a tool"
TWO = "two sessions at the same time are two programs"
CACHED = "in each turn, the prefix cache has at least 95% of the tokens that it could have"
SEARCH = "a web search by a tool of the server"
FEATURES = (
    *(TOOL_CALL, TURNS, SUB_AGENT, RESUMED, COMPACTED, CANCELLED, LONG_TOOL, TWO, CACHED),
    SEARCH,
)
"""The rows of the table."""


def shows(feature: str, **cells: str) -> pytest.MarkDecorator:
    """A mark of a test that fills these cells of a row, by client. A test with a parameter
    ``client`` fills the cell of that client only.
    """
    assert feature in FEATURES, feature
    assert cells.keys() <= CLIENTS.keys(), cells
    return pytest.mark.shows(feature, **cells)


def cells_of(marks: Iterable[pytest.Mark], client: str | None) -> Iterator[tuple[str, str, str]]:
    """Each feature, client and text that a test fills with its ``marks``."""
    for mark in marks:
        if mark.name == MARKER:
            for name, text in mark.kwargs.items():
                if client in (None, name):
                    yield mark.args[0], name, text


def version_of(client: str) -> str:
    """The version of a client that the set-up has installed."""
    file = NODE_CLIENTS / CLIENTS[client][1] / "package.json"
    return str(json.loads(file.read_text("utf-8"))["version"])


def table(cells: Cells) -> str:
    """The table in Markdown."""
    heads = (f"{name} {version_of(client)}" for client, (name, _) in CLIENTS.items())
    rows = [
        ("feature", *heads),
        ("---",) * (len(CLIENTS) + 1),
        *(
            (feature, *(cells.get((feature, client), NOT_TESTED) for client in CLIENTS))
            for feature in FEATURES
        ),
    ]
    lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join(lines).replace("| --- |", "|---|").replace(" --- |", "---|") + "\n"
