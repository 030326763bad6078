"""`python -m benchmarks`: its help, names it does not know, and the lines that pages show."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import BENCHMARKS, benchmarks, call
from tests.cli.conftest import check

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *ROOT.glob("docs/**/*.md")]
SHOWN = re.compile(r"(?:^ *|`)(?:\.venv/bin/)?python -m benchmarks ([^`…\n]+)", re.MULTILINE)
TEXTS = [page.read_text("utf-8").replace("\\\n", "") for page in PAGES]
LINES = sorted({line for text in TEXTS for line in SHOWN.findall(text)})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_tells_what_each_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([name, "--help"]) == 0
    assert f"Usage: python -m benchmarks {name} " in capsys.readouterr().out


def test_no_benchmark_depends_on_what_earlier_runs_have_learned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor adds to it: its own servers and engines inherit the variable."""
    seen: list[str | None] = []
    monkeypatch.setenv("AGENTRT_HISTORY", "/home/user/history.json")
    monkeypatch.setitem(BENCHMARKS, "probe", (f"{__name__}:probe", "Notes its environment."))
    monkeypatch.setitem(globals(), "seen", seen)
    assert call(["probe"]) == 0, capsys.readouterr().err
    assert seen == ["none"]


@click.command()
def probe() -> None:
    seen: list[str | None] = globals()["seen"]
    seen.append(os.environ.get("AGENTRT_HISTORY"))


def test_help_lists_them_all_and_loads_none() -> None:
    command = (sys.executable, "-X", "importtime", "-m", "benchmarks", "--help")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert all(re.search(rf"^  {name} +\S", done.stdout, re.MULTILINE) for name in BENCHMARKS)
    assert "vllm" not in done.stderr.split()
    assert "benchmarks.scheduler" not in done.stderr.split()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["atack"], ["'atack'", "did you mean 'attack'?", "stress"]),
        (["scheduler", "--policy", "fcfs+mru"], ["unknown policy 'fcfs+mru'", "fcfs+cost"]),
        (["scheduler", "--running", "few"], ["--running 'few'", "at least 1"]),
        (["techniques", "--only", "magic"], ["'magic'", "Tree of Thoughts"]),
    ],
)
def test_bad_input(args: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(args), *words)


@pytest.mark.parametrize(
    ("line", "lacking"),
    [
        ("serve --policy continuum", "a scheduler class of its own"),
        ("serve --policy srpt", "the true sizes of programs"),
        ("clients --policy continuum-preview", "a scheduler class of its own"),
        ("clients --real --policy default+ample", "more memory"),
        ("scheduler --policy continuum", "a scheduler class of its own"),
        ("scheduler --policy cap:3", "a gate in front of the engine"),
        ("cliff --policy stock+ample", "more memory"),
        ("cliff --policy default+offload", "host memory"),
        ("cliff --policy priority-service", "priorities of calls"),
        ("memory --policy default+hints", "size hints"),
        ("batch --policy default+hints", "size hints"),
    ],
)
def test_a_command_refuses_a_contender_that_it_cannot_run_as_named(
    line: str, lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *arguments = line.split()
    name = arguments[-1]
    check(capsys, call([command, *arguments]), f"{name!r} needs {lacking}", f"leave out {name!r}")


@pytest.mark.parametrize("line", LINES)
def test_what_a_page_shows_is_understood(line: str) -> None:
    """Its options are read; nothing runs."""
    words = shlex.split(line, comments=True)
    if words[0] in ("--help", "NAME"):
        return
    command: click.Command | None = benchmarks
    context = click.Context(benchmarks)
    while isinstance(command, click.Group) and words:
        name, command, words = command.resolve_command(context, words)
        assert command is not None
        if words:  # else a page just names it
            context = command.make_context(name, words, parent=context)
            words = [*context._protected_args, *context.args]


def test_pages_show_every_benchmark() -> None:
    assert {line.split()[0] for line in LINES} >= set(BENCHMARKS)
