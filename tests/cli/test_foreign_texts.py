"""Texts of models, clients and tools steer no terminal, and forge no lines of a log."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from agentrt.cli.screen import LiveScreen, open_screen
from agentrt.cli.streams import printable
from tests.cli.conftest import Run, Write
from tests.cli.test_output import RUN
from tests.doubles.forked_python import forked_python

STEERS = "\x1b]0;owned\x07\x1b[2Jhidden\rshown\u202e\x9b31m"
HARMLESS = "Straße 東京 👩\u200d🔧 می\u200cخواهم\n\tnext"


def command(path: Path) -> list[str]:
    return [forked_python(), "-m", *RUN, str(path)]


def test_what_steers_a_terminal_is_replaced_and_no_more() -> None:
    assert printable(HARMLESS) == HARMLESS
    told = printable(STEERS)
    assert not any(one in told for one in "\x1b\x07\r\u202e\x9b")
    assert "hidden" in told
    assert printable("a\ud800b\u2028c").encode() == "a\ufffdb\ufffdc".encode()


def test_a_record_of_a_log_cannot_look_like_two(write: Write) -> None:
    path = write(
        "import logging\n"
        "@program\nasync def p(ctx):\n"
        "    log = logging.getLogger('agentrt.tests')\n"
        f"    log.warning('cron %s', {'x' + chr(10) + 'run 7: cancelled' + STEERS!r})\n"
        "    try:\n        raise ValueError('bad' + chr(10) + 'run 8: cancelled')\n"
        "    except ValueError:\n        log.exception('run 9: failed')\n"
    )
    done = subprocess.run(command(path), check=True, stderr=subprocess.PIPE)
    told = done.stderr.decode()
    assert "\ncron x\n  run 7: cancelled\ufffd" in told
    assert "\nrun 9: failed\n  Traceback" in told
    assert "\n  run 8: cancelled\n" in told
    assert "\x1b" not in told


def test_names_are_no_markup_and_steer_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    monkeypatch.setenv("TERM", "xterm")
    try:
        with open_screen() as screen:
            assert isinstance(screen, LiveScreen)
            screen.announce("on plant/[bold]/[/nothing]: :warning: \x1b[2J")
            table = Table("program")
            table.add_row(Text(f"[red]{STEERS}"))
            screen.console.print(table)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(theirs)
    pieces = []
    with contextlib.suppress(OSError):  # with which a terminal ends that nobody else has open
        while piece := os.read(ours, 1 << 16):
            pieces.append(piece)
    os.close(ours)
    told = b"".join(pieces).decode()
    assert "on plant/[bold]/[/nothing]: :warning: \ufffd[2J" in told
    assert "[red]\ufffd]0;owned" in told
    assert "\x1b[2J" not in told
    assert "\u202e" not in told


def test_a_result_goes_into_a_file_as_it_is_and_onto_a_terminal_as_it_can_be_shown(
    write: Write, run_program: Run
) -> None:
    source = f"@program\nasync def p(ctx):\n    return {'a' + STEERS!r}\n"
    assert run_program(source).out == f"a{STEERS}\n"
    path = write(source)
    ours, theirs = pty.openpty()
    subprocess.run(command(path), check=True, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    told = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert told.startswith("a\ufffd]0;owned")
    assert "\x1b" not in told


ODD = """
@program
async def odd(ctx):
    await ctx.human('Half of a pair: \\ud800')
    return ['\\ud800', float('nan'), float('inf'), 'é', '\\x9b2J\\u202e\\u2028\\u0085']
"""


def test_json_has_any_result_in_standard_json(run_program: Run) -> None:
    ran = run_program(ODD, "--human", "yes", "--json")
    assert ran.code == 0
    value = json.loads(ran.out.splitlines()[-1], parse_constant=pytest.fail)
    assert value["results"] == [["\ud800", "NaN", "Infinity", "é", "\x9b2J\u202e\u2028\u0085"]]
    assert not set(ran.out) & {"\x9b", "\u202e", "\u2028", "\u0085"}


def test_json_has_any_error(run_program: Run) -> None:
    ran = run_program("@program\nasync def bad(ctx):\n    raise ValueError('\\ud800')\n", "--json")
    assert (ran.code, ran.json["programs"][0]["error"]) == (1, "ValueError: \ud800")


@pytest.mark.parametrize("option", ["--dag=graph.json", "--trace=trace.json"])
def test_files_accept_any_question(
    option: str, run_program: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_program(ODD, "--human", "yes", option).code == 0
    text = (tmp_path / option.partition("=")[2]).read_text("utf-8")
    assert "Half of a pair: ?" in text
