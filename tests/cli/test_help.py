"""Help answers at once, because it imports nothing heavy."""

from __future__ import annotations

import subprocess
from importlib.metadata import version

from agentrt import __version__
from tests.cli.conftest import Run, python

HEAVY = ("vllm", "torch", "transformers", "langgraph", "langchain_core", "networkx", "rich")
SCRIPT = """
import sys
from agentrt.cli.app import call
code = call(sys.argv[1:])
print("heavy:", *[name for name in {heavy!r} if name in sys.modules])
sys.exit(code)
"""


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return python("-c", SCRIPT.format(heavy=HEAVY), *args)


def test_versions_of_what_runs_the_engine() -> None:
    first, *others, heavy = run("--version").stdout.splitlines()
    assert first == f"agentrt {__version__}"
    assert [line.split()[0] for line in others] == ["Python", "vLLM", "torch", "LangGraph"]
    assert others[-1] == f"LangGraph {version('langgraph')}"
    assert heavy == "heavy:"


def test_help_names_the_commands() -> None:
    out = run("--help").stdout
    assert "Commands:\n  demo " in out
    assert out.endswith("\nheavy:\n")


def test_help_of_run_has_groups_examples_and_exit_codes() -> None:
    out = run("run", "--help").stdout
    for words in (
        "Usage: agentrt run PROGRAM.py[:NAME] [OPTIONS] [-- VLLM_FLAGS]",
        "\nProgram:\n",
        "\nScheduling:\n",
        "\nLangGraph:\n",
        "\nEngine:\n",
        "\nOutput:\n",
        "agentrt run mine.py -- --max-model-len 2048 --dtype float32",
        "{ or [ is JSON",
        "Exit codes: 0",
        "3 a graph waits for a human",
        "--checkpointer sqlite:t.db --thread tea --human yes",
    ):
        assert words in out
    assert out.endswith("\nheavy:\n")


def test_no_arguments_show_the_help(command: Run) -> None:
    ran = command()
    assert ran.code == 2
    assert "Commands:" in ran.err
