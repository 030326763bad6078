"""Ctrl-C when a program does not cooperate: the process ends in time, with its children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from agentrt.cli.signals import taken
from agentrt.executors.vllm.processes import descendants
from agentrt.lab.commands import progress
from tests.cli.conftest import ROOT, Write, python

SCRIPT = """
import sys
import agentrt.cli.screen
import agentrt.cli.signals
import agentrt.engines
from agentrt.cli import main
from tests.cli.echo_engine import EchoEngine

agentrt.cli.signals.STOP_WITHIN_S = float(sys.argv.pop(1))
if sys.argv[-1] == "unheard":
    sys.argv.pop()
    agentrt.cli.screen.Screen.last_words = lambda self, text: self.console.file.close() or print(
        text, file=self.console.file
    )
agentrt.engines.VLLMEngine = EchoEngine
main()
"""


@contextmanager
def running(path: Path, stop_within_s: float, *more: str) -> Iterator[subprocess.Popen[str]]:
    """The command on an echoing engine, from when its program has printed 'here'."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(stop_within_s), "run", str(path), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def ended_by_another(process: subprocess.Popen[str], number: int) -> int:
    """Its exit code. Signals that come before the last was taken are one with it."""
    for _ in range(300):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=0.2)
    raise AssertionError("it goes on")


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"left behind: {pids}"
        time.sleep(0.01)


BLOCKS = (
    "import time\n@program\nasync def p(ctx):\n    print('here', flush=True)\n    time.sleep(60)\n"
)


def test_a_program_that_blocks_the_loop_is_ended_when_the_time_is_up(write: Write) -> None:
    with running(write(BLOCKS), 0.2) as process:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == (
        "interrupted: the programs and the engine were stopped, by force"
    )


def test_it_is_ended_even_if_nobody_can_be_told(write: Write) -> None:
    """What its last words are written to is closed."""
    with running(write(BLOCKS), 0.2, "unheard") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130


def test_a_kill_leaves_no_log_file(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with running(write(BLOCKS), 600) as process:
        process.kill()
        process.wait(timeout=60)
    assert list(folder.iterdir()) == []


def test_a_second_signal_ends_it_at_once(write: Write) -> None:
    with running(write(BLOCKS), 600) as process:
        process.send_signal(signal.SIGINT)
        assert ended_by_another(process, signal.SIGTERM) == 130


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_blocking_tool_and_what_it_started_end_too(number: int, code: int, write: Write) -> None:
    """The tool sits in a thread, where nothing can be cancelled, and has a child process."""
    path = write(
        "import subprocess\n"
        "def blocks():\n"
        "    child = subprocess.Popen(['sleep', '60'])\n"
        "    print('here', flush=True)\n"
        "    child.wait(60)\n"
        "    import time; time.sleep(60)\n"
        "@program\nasync def p(ctx): await ctx.tool(blocks)\n"
    )
    with running(path, 600) as process:
        children = descendants(process.pid)
        assert len(children) == 1
        process.send_signal(number)
        if number == signal.SIGTERM:  # the first one lets it finish
            assert ended_by_another(process, number) == code
        assert process.wait(timeout=60) == code
    wait_gone(children)


LONELY = """
import subprocess, sys, time
from agentrt.cli.signals import end_at_signals
end_at_signals()
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_command_that_takes_no_signals_leaves_no_process() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONELY], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    wait_gone([child])


def test_a_second_signal_ends_a_simulation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first one's processes are being ended, say."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    monkeypatch.setattr(progress, "end_now", end)
    with taken(progress._Raise()):
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit, match="143"):
            signal.raise_signal(signal.SIGINT)


def _ignores(run: int) -> int:
    """A run that imports a module which ignores errors, as some optional imports do."""
    if run == 1:
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
    return run


def _breaks(run: int) -> int:
    """A run that fails because the signal has left a module half imported."""
    with contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)
    raise AttributeError("module 'numpy' has no attribute 'ndarray'")


@pytest.mark.parametrize(("run", "finished"), [(_ignores, 1), (_breaks, 0)])
def test_a_signal_that_an_import_ignores_ends_a_simulation(
    run: Callable[[int], int], finished: int
) -> None:
    results, stop = progress.do_all([1, 2], 1, run)
    assert list(results) == [1][:finished]
    assert stop is not None
    assert str(stop) == f"interrupted; {finished} of 2 runs were finished"
    assert stop.code == 130


PRESSED = """
import signal
import sys


class Pressed:
    def find_spec(self, name, path, target=None):
        if name in {"agentrt.program", "agentrt.cli.app"} & {sys.argv[-1]}:
            signal.raise_signal(signal.SIGINT)


sys.meta_path.insert(0, Pressed())
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [(["-m", "agentrt.cli"], "agentrt.program"), (["agentrt"], "agentrt.cli.app")],
)
def test_ctrl_c_while_the_command_loads_is_no_traceback(
    command: list[str], module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESSED)
    script = tmp_path / "agentrt"
    script.write_text("from agentrt.cli import main\nmain()\n")
    started = [script] if command == ["agentrt"] else command
    done = python(*started, module, PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_ctrl_c_while_another_program_loads_agentrt_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESSED)
    code = "try: import agentrt\nexcept KeyboardInterrupt: print('mine')"
    done = python("-c", code, "agentrt.program", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.stdout == "mine\n"


def test_nohup_is_heard() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with taken(lambda number, frame: pytest.fail("taken")):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_closed_ends_it(write: Write) -> None:
    """Its window is closed while the live view is drawn on it."""
    path = write("@program\nasync def p(ctx):\n    await ctx.llm('hang')\n")
    command = ["-m", "tests.cli.echoing", "run", str(path)]
    child = pexpect.spawn(sys.executable, command, cwd=str(ROOT), timeout=60)
    child.expect_exact("p-1")
    os.close(child.child_fd)
    assert child.wait() == 129


WAITS = """
@program
async def waits(ctx):
    print("here", flush=True)
    await ctx.tool("far")
"""
HANGS = "import sys; [None for line in sys.stdin]"


@pytest.mark.parametrize(("call", "code"), [('tool("far")', 1), ('mcp("far")', 1), ("tools()", 0)])
def test_sigterm_ends_a_program_that_waits_for_a_tool_server(
    tmp_path: Path, write: Write, call: str, code: int
) -> None:
    """It finishes what runs; but no tool is waited for whose server does not answer."""
    server = {"command": sys.executable, "args": ["-c", HANGS]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"far": server}}), encoding="utf-8")
    path = write(WAITS.replace('tool("far")', call))
    with running(path, 60, "--mcp", str(file)) as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        assert process.returncode == code
    assert code == 0 or "the command is shutting down" in err
