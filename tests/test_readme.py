"""What README.md and docs/programs.md show works: programs run, command lines are understood."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrt import Runtime, ToolCall
from agentrt.cli.app import call
from agentrt.cli.load import load_program
from agentrt.engines import EngineOptions
from agentrt.integrations.langchain.shared import close_all
from agentrt.program import Program
from agentrt.request import Call
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.made import Made

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS_PAGE = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def command_lines(word: str) -> list[str]:
    """The lines of the shell blocks that begin with a word, in their order."""
    return [line for line in "".join(blocks("sh")).splitlines() if line.split()[:1] == [word]]


PROGRAM, AGENT = blocks("python")
[SCRIPT] = blocks("python", PROGRAMS_PAGE)

pytestmark = pytest.mark.usefixtures("clean_imports")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the reader of README.md stands: its programs written, one recorded, demos/ there."""
    (tmp_path / "research.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    Made(2.0).node("0#0", "tool", 0.0, 2.0).write(tmp_path / "tea.db")
    (tmp_path / "demos").symlink_to(ROOT / "demos")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_the_program_plans_argues_both_sides_and_sums_up(folder: Path) -> None:
    program = load_program(str(folder / "research.py"))
    assert isinstance(program, Program)
    executor = ScriptedExecutor(lambda call: call.call_id)
    async with Runtime(executor) as runtime:
        run = runtime.start(program, "tea")
        assert await run.wait() == executor.calls[-1].call_id
    assert [node.parents for node in run.dag.nodes()] == [(), (0,), (0,), (1, 2)]
    assert "about tea" in str(executor.calls[0].spec.messages)


def test_the_script_runs_two_programs_on_one_engine(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = []

    class Scripted(ScriptedExecutor):
        def __init__(self, options: EngineOptions) -> None:
            super().__init__(lambda call: call.program_id)
            engines.append((self, options))

    monkeypatch.setattr("agentrt.engines.VLLMEngine", Scripted)
    sys.path.insert(0, str(folder))
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    runpy.run_path(str(folder / "script.py"), run_name="__main__")
    [(executor, options)] = engines
    assert options.max_num_seqs == 8
    assert options.scheduler.policy == "atlas"
    assert len(executor.calls) == 8
    assert ast.literal_eval(capsys.readouterr().out) == ["research-1", "research-2"]


def test_the_agent_runs_on_the_embedded_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(call: Call) -> ToolCall | str:
        asked = call.spec.messages or ()
        return "Rain." if len(asked) > 1 else ToolCall("weather", {"city": "Paris"})

    monkeypatch.setattr("agentrt.engines.VLLMEngine", lambda options: ScriptedExecutor(say))
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    runpy.run_path(str(tmp_path / "agent.py"), run_name="__main__")
    close_all()
    human, call, result, answer = capsys.readouterr().out.splitlines()
    assert (human, answer) == ("human: What is the weather in Paris?", "ai: Rain.")
    assert "'args': {'city': 'Paris'}" in call
    assert result == "tool: It is 12 degrees and raining in Paris."


@pytest.mark.parametrize("line", command_lines("agentrt"))
@pytest.mark.usefixtures("folder")
def test_the_command_line_gets_as_far_as_the_engine(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its options are known, its values fit, and its file holds a program that takes the input."""
    jobs = list[Any]()

    def run(job: Any, *rest: Any, **options: Any) -> int:
        jobs.append(job)
        return 0

    monkeypatch.setattr("agentrt.cli.run.run_job", run)
    monkeypatch.setattr("agentrt.cli.demo.stage.Stage.on_simulated", run)
    monkeypatch.setattr("agentrt.cli.demo.stage.Stage.on_vllm", run)
    monkeypatch.setattr("agentrt.cli.demo.rounds.print_comparison", lambda rounds: None)
    monkeypatch.setattr("agentrt.cli.serving.serve_job", run)
    monkeypatch.setattr("agentrt.lab.commands.compare._run", run)
    monkeypatch.setattr("agentrt.serving.listen.Listener", Unbound)
    words = shlex.split(line, comments=True)[1:]
    assert call(words) == 0, capsys.readouterr().err
    assert len(jobs) == (words[0] in ("run", "serve", "demo", "compare"))


class Unbound:
    """The port may be somebody else's."""

    def __init__(self, host: str, port: int, *_: object, **__: object) -> None:
        self.at = host, port

    def close(self) -> None:
        pass


def test_there_are_command_lines_to_try() -> None:
    assert len(command_lines("agentrt")) > 3


@pytest.mark.parametrize("line", command_lines("make"))
def test_make_knows_the_target(line: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in shlex.split(line, comments=True)[1:]:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
