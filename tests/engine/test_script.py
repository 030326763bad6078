"""A script as a user of `ChatOpenAI` writes it: at the top level, with no ``if __name__``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrt.executors.vllm.default_model import embedded_model

pytestmark = pytest.mark.engine
SCRIPT = """
from agentrt.integrations.langchain import ChatAgentRT

model = ChatAgentRT(max_tokens=4)
print(model.get_num_tokens("Hello, world."))
print(bool(model.invoke("Say hello.").text))
"""


def test_it_runs_once_and_prints_what_it_prints_alone(tmp_path: Path) -> None:
    """No bars, no warnings, nothing asked of a network, and no second run in the engine's core."""
    embedded_model(lambda message: None)
    file = tmp_path / "agent.py"
    file.write_text(SCRIPT)
    nowhere = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
    run = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env={**os.environ, **nowhere},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout.split(), run.returncode) == (["4", "True"], 0), run.stderr
    # A core that a busy machine lets no time to end is killed, of which Python tells in two lines.
    told = [line for line in run.stderr.splitlines() if "resource_tracker" not in line]
    assert told == []
