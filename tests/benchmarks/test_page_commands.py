"""Each command of the benchmarks that a page shows is understood, by its names of now."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from benchmarks.__main__ import benchmarks

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
IN_TEXT = re.compile(r"`\S*python -m benchmarks ([^`]+)`")
IN_BLOCK = re.compile(r'^(?:\w+=")?[\w./]*python -m benchmarks ([^`\n]+?)"?$', re.MULTILINE)


def lines() -> list[str]:
    """The commands of all pages, without those that leave words out."""
    commands = set[str]()
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", "")
        for shown in (IN_TEXT, IN_BLOCK):
            commands |= {" ".join(line.split()) for line in shown.findall(text)}
    return sorted(line for line in commands if "…" not in line and not line.startswith("NAME"))


LINES = lines()


def test_pages_show_commands_of_most_benchmarks() -> None:
    assert len({line.split()[0] for line in LINES}) > 20


@pytest.mark.parametrize("line", LINES)
def test_a_command_is_understood_without_a_notice(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FILE", "TINY"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line, comments=True)
    command: click.Command | None = benchmarks
    context = click.Context(benchmarks, info_name="benchmarks")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        commands, command, words = command.resolve_command(context, words)
        assert command is not None
        if not words or "--help" in words:
            return
        context = command.make_context(commands, words, parent=context)
        words = [*context._protected_args, *context.args]
    assert capsys.readouterr().err == ""
