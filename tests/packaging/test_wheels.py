"""The built wheels in environments that have nothing else: what a newcomer's first commands do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import httpx
import pytest

from agentrt import __version__
from tests.packaging.wheels import SCHEDULER, bare_variables, build, environment

PROGRAM = """
from agentrt import Context, program

@program
async def greets(ctx: Context, who: str = "you") -> str:
    reply = await ctx.llm(f"Greet {who}.", max_tokens=8)
    return f"{who}: {reply.text}"
"""
THIRD_PARTY = {
    "others-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: others\nVersion: 1\n",
    "others-1.dist-info/entry_points.txt": """
        [agentrt.policies]
        newest = others:Newest
        [agentrt.routers]
        any = others:Any
        """,
    "others.py": '''
import sys

from agentrt.router.base import Router
from agentrt.scheduler.policies import Policy, Priority


class Newest(Policy):
    """Last come, first served."""

    name = "newest"

    def priority(self, call, now):
        print("ranked", call.call_id, file=sys.stderr)
        return Priority(0, order=-now)


class Any(Router):
    name = "any"

    def choose(self, call, replicas):
        return replicas[0]
''',
}


class Bare(NamedTuple):
    """An environment with agentrt's wheel and another package, and a home with nothing in it."""

    wheel: Path
    python: Path
    home: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(self.python.with_name(arguments[0])), *arguments[1:]],
            cwd=self.home,
            env=bare_variables(self.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=120)
        assert process.returncode == code, err[-4000:]
        return out, err


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    folder = tmp_path_factory.mktemp("bare")
    wheel = build(Path(), folder)
    python, home = environment(folder / "venv", wheel), folder / "home"
    [installed] = folder.glob("venv/lib/python*/site-packages")
    for name, text in THIRD_PARTY.items():
        (installed / name).parent.mkdir(exist_ok=True)
        (installed / name).write_text(textwrap.dedent(text), encoding="utf-8")
    home.mkdir()
    (home / "greets.py").write_text(PROGRAM, encoding="utf-8")
    return Bare(wheel, python, home)


def line_of(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The next line on stderr that the pattern is found in."""
    assert process.stderr is not None
    return next(found for line in process.stderr if (found := re.search(pattern, line)))


def test_it_knows_its_version(bare: Bare) -> None:
    out, err = bare.run("agentrt", "--version")
    assert out.startswith(f"agentrt {__version__}\n")
    assert "vLLM not installed" in out
    assert err == ""


def test_the_demo_shows_programs_and_a_dashboard_without_an_engine(bare: Bare) -> None:
    process = bare.start("agentrt", "demo")
    assert process.stderr is not None
    said = process.stderr.readline()
    found = line_of(process, r"dashboard: (http://127\.0\.0\.1:\d+)/dashboard")
    page = httpx.get(f"{found[1]}/dashboard", timeout=60)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert said.startswith("--engine simulated runs no model")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(r"^(\w+)-\d ", out, re.MULTILINE) == ["report"] * 3 + ["lookup"] * 5
    assert "First run, " in out
    assert "Once agentrt knows both types of programs: " in out
    assert err.splitlines()[-1].startswith("  with programs of your own: agentrt compare ")


def test_run_names_what_to_install_or_makes_answers_up(bare: Bare) -> None:
    _, err = bare.run("agentrt", "run", "greets.py", code=2)
    assert "pip install '.[engine]' in a checkout" in err
    assert "with --engine simulated do not need vLLM" in err
    _, err = bare.run("agentrt", "calibrate", code=2)
    assert err == (
        "error: this command needs vLLM; on a machine with a GPU, run: pip install '.[engine]' in "
        "a checkout of agentrt; without a GPU, run: make setup in a checkout of agentrt\n"
    )
    out, _ = bare.run("agentrt", "run", "greets.py", "--engine", "simulated", "--input", "Ada")
    assert re.fullmatch(r"Ada: [a-z ]+\n", out)


def test_policies_and_routers_of_other_packages_are_found(bare: Bare) -> None:
    flags = ("--engine", "simulated", "--policy", "newest", "--json")
    out, err = bare.run("agentrt", "run", "greets.py", "--n", "2", *flags)
    assert json.loads(out.splitlines()[-1])["policy"] == "newest"
    assert re.findall(r"^ranked (\S+)$", err, re.MULTILINE) == ["greets-1/0", "greets-2/0"]
    code = "from agentrt.router import make_router; print(type(make_router('any')).__module__)"
    assert bare.run("python", "-c", code)[0] == "others\n"


def test_a_server_runs_a_program(bare: Bare) -> None:
    process = bare.start("agentrt", "serve", "greets.py", "--engine", "simulated", "--port", "0")
    try:
        found = line_of(process, r"serving greets at (http://127\.0\.0\.1:\d+) ")
        answer = httpx.post(
            f"{found[1]}/v1/programs/greets/runs", json={"input": "Ada"}, timeout=60
        )
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert answer.status_code == 200, err
    assert answer.json()["result"].startswith("Ada: ")


def test_the_scheduler_installs_nothing_else_and_says_what_it_lacks(
    bare: Bare, tmp_path: Path
) -> None:
    wheel = build(SCHEDULER, tmp_path)
    with ZipFile(wheel) as file, ZipFile(bare.wheel) as whole:
        [metadata] = [name for name in file.namelist() if name.endswith("/METADATA")]
        assert "Requires-Dist" not in file.read(metadata).decode()
        code = [name for name in file.namelist() if name.startswith("agentrt/")]
        assert len(code) > 50
        assert {name for name in code if file.read(name) != whole.read(name)} == set()
    small = Bare(wheel, environment(tmp_path / "venv", wheel), tmp_path)
    asks = "import agentrt; print(agentrt.__version__, agentrt.SchedulerConfig().policy)"
    assert small.run("python", "-c", asks)[0] == f"{__version__} adaptive\n"
    for name in ("program", "Runtime", "tool"):
        _, err = small.run("python", "-c", f"from agentrt import {name}", code=1)
        assert f"ImportError: agentrt.{name} is not" in err.splitlines()[-1]
        assert "pip install . in a checkout of agentrt" in err
