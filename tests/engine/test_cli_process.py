"""`agentrt run` as its users meet it: a process, a terminal, a real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

from agentrt.executors.vllm.processes import descendants
from tests.doubles.tinymodel import tiny_model
from tests.engine.test_cli_run import GOOD, LONG, START_S, put, wait_gone

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

PATIENT = """
import agentrt.cli.signals
from agentrt.cli import main

agentrt.cli.signals.STOP_WITHIN_S = 60  # a busy machine may take longer than users wait
main()
"""


def test_ctrl_c_while_it_decodes(tmp_path: Path) -> None:
    """On a terminal, so that the live view is there and the whole process group is hit."""
    program, model = put(tmp_path, LONG), str(tiny_model(tmp_path / "tiny"))
    arguments = ["-m", "agentrt.cli", "run", program, "--model", model, "--policy", "atlas"]
    child = pexpect.spawn(sys.executable, arguments, timeout=START_S, dimensions=(24, 100))
    try:
        child.expect(r"running, Q\d")
        engine = descendants(child.pid)
        assert engine
        child.sendintr()
        child.expect("interrupted: the programs and the engine were stopped")
        child.expect(pexpect.EOF)
        child.wait()
    finally:
        child.close(force=True)
    assert child.exitstatus == 130
    wait_gone(engine)


def test_a_signal_while_it_loads(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PATIENT, "run", put(tmp_path, GOOD)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + START_S
            while not (engine := descendants(process.pid)):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(1.0)  # into the child's own imports
            os.killpg(process.pid, signal.SIGTERM)
            out, err = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 143
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1].endswith("the programs and the engine were stopped")
    wait_gone(engine)
