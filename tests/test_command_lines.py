"""Each command line that README.md and docs show is understood; nothing is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from agentrt.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
SHOWN = re.compile(
    r"^(?:```(?:sh|bash)\n(.*?)^```$|    (agentrt [^\n]*)$)", re.DOTALL | re.MULTILINE
)
NAMED = re.compile(r"`(agentrt (?:bench|simulate) [^`…]+)`")
"""In a sentence or a table; one that ends with dots is not whole."""
UNINSTALLED = re.compile(r"`python -m benchmarks (\w+)")


def command_lines() -> Iterator[str]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", "")
        shown = "\n".join("".join(parts) for parts in SHOWN.findall(text))
        for line in [*shown.splitlines(), *NAMED.findall(text)]:
            if line.startswith("agentrt ") and "--help" not in line:
                yield line


LINES = sorted(set(command_lines()))


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)[1:]
    command: click.Command | None = app
    context = click.Context(app, info_name="agentrt")
    while isinstance(command, click.Group) and words:
        name, command, words = command.resolve_command(context, words)
        assert command is not None
        context = command.make_context(name, words, parent=context)
        words = [*context._protected_args, *context.args]


def test_the_benchmarks_of_a_checkout_are_there() -> None:
    there = set[str]()
    for file in (ROOT / "benchmarks").glob("**/*.py"):
        there |= {*re.findall(r"\w+", file.read_text("utf-8"))}
    named = {name for page in PAGES for name in UNINSTALLED.findall(page.read_text("utf-8"))}
    assert len(named - {"NAME"}) > 5
    assert named - {"NAME"} - there == set()


def test_the_pages_show_many() -> None:
    assert len(LINES) > 60
    assert {line.split()[1] for line in LINES} >= {"run", "serve", "worker", "keys", "simulate"}
