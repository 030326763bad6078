"""Bad usage: exit code 2 and one line that names the thing and the way out."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from agentrt.executors.base import Progress
from agentrt.executors.vllm.options import config_fault
from tests.cli.conftest import (
    Invoke,
    Refused,
    Run,
    Write,
)
from tests.cli.echo_engine import EchoEngine

GOOD = "@program\nasync def good(ctx): return 1\n"
ASKS = "@program\nasync def asks(ctx): return await ctx.human('Which colour?')\n"
NEEDS = "@program\nasync def needs(ctx, text): return text\n"
A_MODEL = ["a folder with a config.json", "a hub name such as"]
ATLAS = ["--policy", "atlas"]
ADAPTIVE = ["--policy", "adaptive", "--history"]
TYPED = "@program\nasync def typed(ctx, n: int): return n + 1\n"
TWO = f"{GOOD}@program\nasync def better(ctx): return 2\n"


@pytest.mark.parametrize(
    ("source", "suffix", "words"),
    [
        ("x = 1\n", "", ["prog.py", "no program", "@program"]),
        (TWO, "", ["(better, good)", "prog.py:better"]),
        (TWO, ":best", ["'best'", "better, good"]),
        (GOOD, ":", ["prog.py:", "after the colon"]),
        ("def broken(:\n", "", ["prog.py:2", "syntax error"]),
        ("raise SystemExit(3)\n", "", ["exits while it is imported", "__main__"]),
        ("@program\ndef plain(ctx): return 1\n", "", ["plain", "must be an 'async def' function"]),
        ("@program\nasync def none(): return 1\n", "", ["none", "async def none(ctx, input)"]),
        (NEEDS, "", ["'needs' needs an input", "--input TEXT"]),
        (ASKS, "", ["asks-1", "'Which colour?'", "--human TEXT"]),
    ],
)
def test_program_file(
    source: str,
    suffix: str,
    words: list[str],
    write: Write,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    refused("run", f"{write(source)}{suffix}", says=words)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing.py", ["missing.py: no such file", "latin.py, zero.py"]),
        ("missing.py:main", ["missing.py: no such file", "latin.py, zero.py"]),
        ("latni.py", ["latni.py: no such file", "did you mean latin.py?"]),
        ("latin", ["latin: no such file", "did you mean latin.py?"]),
        ("inner.py", ["inner.py: no such file", "did you mean deep/inner.py?"]),
        ("empty/p.py", ["p.py: no such file", "no Python files in /", "/empty;"]),
        ("**.py", ["**.py: no such file", "latin.py"]),
        ("nowhere/p.py", ["p.py: no such file", "folder 'nowhere'"]),
        (".", ["a folder without a langgraph.json", "name a Python file"]),
        ("model", ["model is the folder of a model", "use --model model"]),
        ("Qwen/Qwen2.5-7B", ["no such file", "a model is named by --model Qwen/Qwen2.5-7B"]),
        ("notes.txt", ["notes.txt", "Python file", ".py"]),
        ("prod.json", ["prod.json", "'graphs'", "agent.py:graph"]),
        ("latin.py", ["latin.py", "syntax error", "utf-8"]),
        ("zero.py", ["zero.py", "null bytes"]),
        ("x" * 300, ["xxx…: the name of this file is too long"]),
    ],
)
def test_target(
    target: str, words: list[str], tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("tea\n")
    (tmp_path / "prod.json").write_text("{}")
    (tmp_path / "latin.py").write_bytes(b"x = 'caf\xe9'\n")
    (tmp_path / "zero.py").write_bytes(b"x = 1\0\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "inner.py").write_text(GOOD)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    refused("run", target, says=words)


def test_advice_fits_a_file_that_cannot_be_read(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    says = ["@notes: is a directory; name a file that this user can read"]
    refused("run", "good.py", "--input", "@notes", says=says)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "lifo"], ["unknown policy 'lifo'", "available: atlas"]),
        (["--input", "{goal: tea}"], ["--input", "bad JSON", "@FILE.txt"]),
        (["--input", "[1, 2"], ["--input", "bad JSON", "@FILE.txt"]),
        (["--input", "@missing.txt"], ["@missing.txt", "no such file", "@@"]),
        (["--input", "@bad.json"], ["@bad.json", "bad JSON"]),
        (["--input", "@bytes.txt"], ["@bytes.txt", "not UTF-8"]),
        (["--input", "@"], ["--input @", "name a file after the @"]),
        (["--input", "tea"], ["'good' takes no input", "leave --input out"]),
        (["--n", "0"], ["'--n'", "x>=1", "run --help"]),
        (["--n", "two"], ["'--n'", "'two' is not an integer", "run --help"]),
        (["--timeout", "soon"], ["'--timeout'", "'soon' is not a number"]),
        (["--inptu", "3"], ["no such option '--inptu'; did you mean --input", "after --"]),
        (["--input", "3", "--input", "4"], ["--input is set 2 times", "'agentrt run --help'"]),
        (["--max-num-seqs", "0"], ["'--max-num-seqs'", "x>=1"]),
        (["--timeout", "0"], ["'--timeout'", "x>0"]),
        (["--seed", "x"], ["'--seed'", "'x'"]),
        (["--quanta", "a,b"], ["--quanta 'a,b'", "0.5,1,2"]),
        (["--quanta", "1,-2"], ["--quanta '1,-2'", "positive seconds"]),
        (["--quanta", "nan"], ["--quanta 'nan'", "positive seconds"]),
        (["--beta", "0"], ["beta", "positive", "inf"]),
        (["--lane", "1"], ["lane", "share of the batch", "1.0"]),
        (["--lane", "nan"], ["lane", "share of the batch", "nan"]),
        (["--retention", "mru"], ["--retention", "'lru', 'ttl', 'cost'"]),
        (["--admission", "all"], ["--admission", "'off', 'cap', 'memory'"]),
        (["--admission-cap", "2"], ["--admission-cap", "only with --admission cap", "memory now"]),
        (
            ["--policy", "fcfs", "--ttft-target", "2"],
            ["--ttft-target", "only with --admission memory", "off now"],
        ),
        (
            ["--admission", "cap", "--ttft-target", "2"],
            ["--ttft-target", "only with --admission memory", "cap now"],
        ),
        (["--ttft-target", "0"], ["'--ttft-target'", "x>0"]),
        (["--beta", "nan"], ["beta", "positive", "inf"]),
        (["--replicas", "0"], ["'--replicas'", "x>=1"]),
        (["--router", "agentix"], ["--router agentix", "--replicas N"]),
        (
            ["--replicas", "2", "--router", "x"],
            ["router 'x'", "agentix, cost, least-used, prefix"],
        ),
        (
            ["--replicas", "2", *ADAPTIVE, "bad.json"],
            ["bad.json", "a file that this version of agentrt wrote"],
        ),
        (
            ["--replicas", "2", *ATLAS, "--retention", "cost", "--history", "new.json"],
            ["--history", "atlas", "several engines", "--policy adaptive"],
        ),
        (["--replica", "lab/m", *ATLAS, "--history", "new.json"], ["--history", "several engines"]),
        (["--cluster", "auto", *ATLAS, "--history", "new.json"], ["--history", "several engines"]),
        (["--replica", "./nothing=2"], ["model './nothing': no such folder", *A_MODEL]),
        (["--replica", "lab/m=0"], ["--replica 'lab/m=0'", "MODEL=N"]),
        (["--replica", "'lab/m"], ["--replica", "No closing quotation"]),
        (["--replica", " "], ["--replica ' '", "MODEL"]),
        (["--cluster", "nowhere"], ["invalid address --cluster 'nowhere'", "ray://HOST:PORT"]),
        (["--cluster", "ray://a:99999"], ["invalid address --cluster 'ray://a:99999'"]),
        (
            [*ATLAS, "--history", "new.json"],
            ["--history", "atlas", "--policy adaptive"],
        ),
        (["--policy", "plas", "--history", "new.json"], ["--history", "plas", "lru"]),
        ([*ADAPTIVE, "bad.json"], ["bad.json", "name a file that this version of agentrt wrote"]),
        ([*ADAPTIVE, "bytes.txt"], ["bytes.txt", "name a file that this version of agentrt wrote"]),
        ([*ADAPTIVE, "old.json"], ["old.json", "version 0, but this agentrt needs version 3"]),
        ([*ADAPTIVE, "bytes.txt/new.json"], ["bytes.txt/new.json", "Not a directory"]),
        ([*ADAPTIVE, "folder.json"], ["'--history'", "'folder.json' is a directory"]),
        (
            [*ADAPTIVE, "x" * 300],
            ["File name too long", "name a file that this version of agentrt wrote"],
        ),
        (["--dag", "graph.png"], ["graph.png", ".json", ".mmd"]),
        (["--dag", "nowhere/graph.json"], ["'nowhere'", "does not exist"]),
        (["--dag", "folder.json"], ["folder.json", "is a folder", "name a file"]),
        (["--model", "./nothing"], ["model './nothing': no such folder", *A_MODEL]),
        (["--model", "x" * 300], ["model 'xxx", "…': file name too long", *A_MODEL]),
        (["--model", "."], ["model '.': the folder has no config.json", *A_MODEL]),
        (["--model", ""], ["--model ''", "a folder or"]),
        (["--max-model-len", "9"], ["--max-model-len", "options of vLLM go after --"]),
        (["surplus"], ["surplus", "run --help"]),
        (["--policy"], ["'--policy'", "requires an argument"]),
    ],
)
def test_option(
    options: list[str],
    words: list[str],
    tmp_path: Path,
    write: Write,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "old.json").write_text('{"version": 0}')
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "folder.json").mkdir()
    refused("run", write(GOOD), *options, says=words)


class EngineConfig(BaseModel):
    """Stands for vLLM's, which are checked by pydantic, too."""

    block_size: int = Field(gt=0)
    dtype: str = "half"

    @field_validator("dtype")
    @classmethod
    def known(cls, value: str) -> str:
        raise ValueError("not one of " + "float, " * 999)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"block_size": -3}, "block_size: Input should be greater than 0"),
        ({"block_size": 0, "dtype": "x"}, "greater than 0; dtype: not one of float, float,"),
    ],
)
def test_what_vllm_refuses_is_told_without_its_frame(
    values: dict[str, Any],
    reason: str,
    run_program: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(self: EchoEngine, progress: Progress) -> None:
        try:
            EngineConfig(**values)
        except ValidationError as error:
            raise config_fault("tiny", error) from error

    monkeypatch.setattr(EchoEngine, "start", start)
    ran = run_program(GOOD)
    line = ran.said
    assert ran.code == 2
    assert line.startswith("error: vLLM refuses these options with model 'tiny': ")
    assert reason in line
    assert line.endswith("(change --model, or the flags after --)")
    assert "pydantic" not in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["walk"], ["'walk'", "demo, run"]),
        (["prog.py"], ["did you mean 'agentrt run prog.py'"]),
        (["run"], ["missing argument", "PROGRAM.py", "run --help"]),
        (["--loud"], ["--loud", "agentrt --help"]),
    ],
)
def test_command(args: list[str], words: list[str], refused: Refused) -> None:
    refused(*args, says=words)


@pytest.mark.parametrize(
    ("args", "command"),
    [
        (["run", "prog.py", "--policy"], "run"),
        (["journal", "ls", "a.journal", "--limit"], "journal ls"),
        (["simulate", "run", "--load"], "simulate run"),
    ],
)
def test_an_option_without_its_value_points_to_the_help_of_its_command(
    args: list[str], command: str, refused: Refused
) -> None:
    refused(*args, says=["requires an argument", f"(see 'agentrt {command} --help')"])


@pytest.mark.parametrize(
    ("command", "has_engine"),
    [
        ("compare", True),
        ("calibrate", True),
        ("journal replay", True),
        ("doctor", False),
        ("journal ls", False),
        ("simulate run", False),
        ("worker", False),
    ],
)
def test_only_commands_with_an_engine_name_the_place_of_vllm_options(
    command: str, has_engine: bool, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(*command.split(), "--loud") == 2
    assert ("options of vLLM go after --" in capsys.readouterr().err) is has_engine


def test_a_program_that_raises_is_told_in_its_own_code(write: Write, run_program: Run) -> None:
    source = (
        "import asyncio\n"
        "async def deep(ctx):\n    await ctx.llm('a')\n    raise KeyError('tea')\n"
        "@program\nasync def bad(ctx):\n    async with asyncio.TaskGroup() as group:\n"
        "        group.create_task(deep(ctx))\n"
    )
    ran = run_program(source)
    assert ran.code == 1
    frames = [line for line in ran.err.splitlines() if "  File " in line]
    assert len(frames) == 2
    assert all(str(write(source)) in frame for frame in frames)
    assert "KeyError: 'tea'" in ran.err
    assert "error: run bad-1 failed: ExceptionGroup" in ran.err


def test_what_a_program_cannot_have_here_is_told_in_one_line(
    write: Write, run_program: Run
) -> None:
    """Be it its own mistake, or that this engine cannot do it."""
    waits = "@program\nasync def p(ctx):\n    await ctx.event('plant/#')\n"
    forms = "@program\nasync def p(ctx):\n    await ctx.llm('x', schema={'type': 'object'})\n"
    for source, kind, code in ((waits, "vllm", 2), (forms, "simulated", 1)):
        ran = run_program(source, "--engine", kind)
        assert (ran.code, "Traceback" in ran.err) == (code, False)
        assert ran.said.startswith("error: run p-1: ")
        assert ran.said.endswith(f" ({write(source)}:4)")


def test_below_a_programs_own_trace_causes_are_told_without_foreign_frames(
    run_program: Run,
) -> None:
    source = (
        "import json\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "@program\nasync def bad(ctx):\n    with ThreadPoolExecutor() as pool:\n"
        "        broken = pool.submit(json.loads, '{').exception()\n"
        "    raise OSError('no answer') from broken\n"
    )
    ran = run_program(source)
    assert "JSONDecodeError: Expecting property" in ran.err
    assert "decoder.py" not in ran.err
    assert "error: run bad-1 failed: OSError: no answer" in ran.err


def test_a_package_that_is_missing_is_told_with_the_place_for_it(run_program: Run) -> None:
    ran = run_program("import no_such_package\n")
    assert "No module named 'no_such_package'" in ran.err
    assert sys.prefix in ran.err


def test_a_file_that_raises_on_import_is_told_in_one_line_and_where(
    write: Write, run_program: Run
) -> None:
    ran = run_program("import json\nx = json.loads('{')\n")
    path = write("")
    assert ran.code == 1
    [line] = ran.err.splitlines()
    assert line.startswith(f"error: cannot import {path}: JSONDecodeError: Expecting property")
    assert line.endswith(f" ({path}:3)")


def test_a_program_past_its_time_is_cancelled(run_program: Run) -> None:
    slow = "@program\nasync def slow(ctx): return await ctx.llm('hang')\n"
    ran = run_program(slow, "--timeout", "0.05")
    said = "error: run slow-1 took longer than 0.05 s (--timeout)"
    assert (ran.code, ran.said) == (1, said)


STUBBORN = """
import asyncio

@program
async def stubborn(ctx):
    for _ in range(3):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
    return "done at last"
"""


def test_a_program_past_its_time_that_ignores_a_cancellation_is_cancelled_again(
    run_program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.runtime.run._AGAIN_S", 0.01)
    ran = run_program(STUBBORN, "--timeout", "0.05")
    assert (ran.code, ran.out) == (0, "done at last\n")


def test_our_own_bug_says_so(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("agentrt.cli.execute.CommandOutcome")
    ran = run_program(GOOD)
    assert ran.code == 70
    assert "Traceback" in ran.err
    assert "bug in agentrt" in ran.said


@pytest.mark.parametrize("value", ["three", "3.5", '{"m": 3}', "[3]", ""])
def test_an_input_of_the_wrong_type_is_refused_before_an_engine_starts(
    value: str, write: Write, refused: Refused
) -> None:
    words = ["'typed'", "'n' must be int"]
    refused("run", str(write(TYPED)), "--input", value, says=words)


@pytest.mark.parametrize("value", ["3", '{"n": 3}', '{"n": "3"}'])
def test_text_becomes_the_number_that_the_program_expects(value: str, run_program: Run) -> None:
    assert run_program(TYPED, "--engine", "simulated", "--input", value).out == "4\n"


@pytest.mark.parametrize(
    ("name", "words"),
    [("rnu", ["did you mean 'run'?"]), ("bnech", ["available: demo, run, serve"])],
)
def test_an_unknown_command_names_only_commands_that_work(
    name: str, words: list[str], command: Run
) -> None:
    ran = command(name)
    assert ran.code == 2
    assert [word for word in words if word not in ran.err] == []
    assert "bench" not in ran.err.replace("bnech", "")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("run p.py --inputs in.jsonl --out", "--out"),
        ("run p.py --out out.jsonl --inputs", "--inputs"),
        ("run p.py --history", "--history"),
        ("run p.py --mcp", "--mcp"),
        ("run p.py --checkpointer", "--checkpointer"),
        ("serve p.py --journal", "--journal"),
        ("serve p.py --database", "--database"),
        ("journal ls", "FILE"),
        ("journal why", "FILE"),
        ("journal diff j a b --with", "--with"),
        ("journal replay", "FILE"),
        ("results show r.jsonl --plot", "--plot"),
        ("results diff a b --id x --journal-a", "--journal-a"),
        ("keys new ann --file", "--file"),
        ("simulate run --workload", "--workload"),
        ("simulate run --step-time", "--step-time"),
    ],
)
def test_the_value_of_a_variable_that_is_not_set_names_no_file(
    command: str,
    name: str,
    refused: Refused,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    write("@program\nasync def main(ctx): return 1\n").rename(tmp_path / "p.py")
    monkeypatch.chdir(tmp_path)
    refused(*command.split(), "", says=[name])


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("run --input", "run"),
        ("compare --human", "compare"),
        ("journal ls --type", "journal ls"),
        ("keys new ann --file", "keys new"),
        ("questions --url", "questions ls"),
        ("simulate run --load", "simulate run"),
        ("demo --no-dashboard=yes", "demo"),
    ],
)
def test_an_error_about_a_value_names_the_help_of_its_own_command(
    words: str, command: str, refused: Refused
) -> None:
    refused(*words.split(), says=[f"(see 'agentrt {command} --help')"])


@pytest.mark.parametrize("command", ["demo", "doctor", "journal ls", "keys new", "questions ls"])
def test_a_command_without_options_of_vllm_names_none(
    command: str, refused: Refused, capsys: pytest.CaptureFixture[str], invoke: Invoke
) -> None:
    refused(*command.split(), "--fast", says=["'--fast'", f"(see 'agentrt {command} --help')"])
    invoke(*command.split(), "--fast")
    assert "vLLM" not in capsys.readouterr().err
