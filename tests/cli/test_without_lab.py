"""The product runs where the laboratory is left out. That no module imports it, lint decides."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, python

# An editable installation would find what the copy lacks in the checkout.
PRELUDE = """
import sys
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in repr(one)]
"""
CALL = """
from agentrt.cli.app import call
sys.exit(call(sys.argv[1:]))
"""
# Calls are answered from a script; nothing of vLLM is loaded.
RUN = """
from agentrt import engines
from tests.doubles.scripted import ScriptedExecutor
engines.VLLMEngine = lambda options: ScriptedExecutor(lambda call: "done")
"""
PROGRAM = """
from agentrt import program

@program
async def one(ctx):
    return (await ctx.llm("well?")).text
"""


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package without `agentrt.lab`."""
    root = tmp_path_factory.mktemp("product")
    ignored = shutil.ignore_patterns("lab", "__pycache__")
    shutil.copytree(ROOT / "agentrt", root / "agentrt", ignore=ignored)
    return root


def run(product: Path, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    # The copy comes first; the checkout has what tests share.
    path = f"{product}:{ROOT}"
    return python("-c", PRELUDE + script, *args, cwd=product, PYTHONPATH=path)


def test_help_lists_the_commands_that_are_there(product: Path) -> None:
    done = run(product, CALL, "--help")
    listed = done.stdout.partition("Commands:")[2].strip().splitlines()
    names = [line.split()[0] for line in listed if not line.startswith("    ")]
    others = ["journal", "results", "questions", "weights", "doctor", "keys"]
    assert names == ["demo", "run", "serve", "client", "worker", *others]
    refused = run(product, CALL, "simulate")
    assert refused.returncode == 2
    assert "'simulate'; available: demo, run, serve, client" in refused.stderr


def test_a_program_runs(product: Path) -> None:
    (product / "prog.py").write_text(PROGRAM, encoding="utf-8")
    done = run(product, RUN + CALL, "run", "prog.py")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
