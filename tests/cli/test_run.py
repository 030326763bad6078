"""`agentrt run` in this process, on an engine that echoes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Write, python

ECHO = "@program\nasync def echo(ctx, text='tea'):\n    return str(await ctx.llm(str(text)))\n"
REPORTED = (
    *("id", "type", "state", "wall_s", "service_s", "waiting_s", "interrupt_s", "preemptions"),
    *("critical_path_s", "calls", "output_tokens", "prompt_tokens", "cached_tokens"),
)
STOPPED = "the programs and the engine were stopped"


def hangs(*signals: int) -> str:
    """A program that sends these signals to itself, then hangs; its cleanup still runs."""
    kills = "".join(f"    os.kill(os.getpid(), {int(number)})\n" for number in signals)
    return (
        f"import os\n@program\nasync def hangs(ctx):\n{kills}"
        "    try:\n        await ctx.llm('hang')\n    finally:\n        print('tidied')\n"
    )


def test_the_result_alone_is_on_stdout(run_program: Run) -> None:
    assert run_program(ECHO).out == "tea\n"


WARNS = """
import logging, sys
from agentrt.cli.app import call
from agentrt import engines
from tests.cli.echo_engine import EchoEngine

class Warns(EchoEngine):
    async def start(self, progress):
        logging.getLogger("agentrt.executors.history_folder").warning("nothing is kept")
        logging.getLogger("vllm").warning("noise")
        print("more noise", file=sys.stderr)
        await super().start(progress)

engines.VLLMEngine = Warns
sys.exit(call(sys.argv[1:]))
"""


def test_a_warning_while_the_engine_starts_is_one_line_for_the_user(write: Write) -> None:
    """The rest of what is written meanwhile is the engine's own, and goes into its log."""
    ran = python("-c", WARNS, "run", write(ECHO))
    assert (ran.returncode, ran.stdout) == (0, "tea\n"), ran.stderr
    assert ran.stderr.count("nothing is kept") == 1
    assert "nothing is kept" in ran.stderr.splitlines()
    assert "noise" not in ran.stderr


def test_json_is_one_line_of_the_documented_shape(run_program: Run) -> None:
    source = ECHO.replace("    return", "    print('hello')\n    return")
    ran = run_program(source, "--n", 3, "--json", "--policy", "plas", "--", "--x", "1")
    assert ran.code == 0
    assert ran.out.splitlines()[:-1] == ["hello"] * 3
    value = ran.json
    names = ["results", "programs", "interrupts", "outside_calls", "engine", "policy"]
    assert list(value) == names
    assert (value["interrupts"], value["outside_calls"]) == ([], 0)
    assert value["results"] == ["tea"] * 3
    assert [program["id"] for program in value["programs"]] == ["echo-1", "echo-2", "echo-3"]
    assert set(REPORTED) <= set(value["programs"][0])
    assert value["engine"]["table"] == {"runtime": 0, "engine": 0}
    assert value["engine"]["settings"]["flags"] == ["--x", "1"]
    assert value["policy"] == "plas"


@pytest.mark.parametrize(("options", "slots"), [([], 16), (["--max-num-seqs", 3], 3)])
def test_json_has_the_size_of_the_batch_that_the_engine_took(
    options: list[object], slots: int, run_program: Run
) -> None:
    value = run_program(ECHO, "--json", *options).json
    assert value["engine"]["settings"]["max_num_seqs"] == slots


def test_replies_are_shown_as_text_and_have_all_fields_as_json(run_program: Run) -> None:
    source = "@program\nasync def one(ctx): return await ctx.llm('tea')\n"
    source += "@program\nasync def several(ctx): return [{'and': await ctx.llm('milk')}]\n"
    assert run_program(source, name=":one").out == "tea\n"
    assert json.loads(run_program(source, name=":several").out) == [{"and": "milk"}]
    [result] = run_program(source, "--json", name=":one").json["results"]
    assert (result["text"], result["finish_reason"]) == ("tea", "stop")


def test_json_tells_of_the_failed_as_well(run_program: Run) -> None:
    ran = run_program("@program\nasync def bad(ctx): raise ValueError('no tea')\n", "--json")
    assert (ran.code, ran.json["results"]) == (1, [None])
    [program] = ran.json["programs"]
    assert (program["state"], program["error"]) == ("failed", "ValueError: no tea")


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("green tea", "green tea"),
        ("null", "null"),
        ('{"cups": 2}', "{'cups': 2}"),
        ("[1, 2]", "[1, 2]"),
        ("@@home", "@home"),
        ("@in.json", "{'cups': 3}"),
        ("@in.txt", "[not json"),
    ],
)
def test_input(
    given: str, seen: str, tmp_path: Path, run_program: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.json").write_text('{"cups": 3}')
    (tmp_path / "in.txt").write_text("[not json")
    assert run_program(ECHO, "--input", given).out == f"{seen}\n"


def test_answers_in_advance_come_in_order_to_each_program(run_program: Run) -> None:
    source = (
        "@program\nasync def asks(ctx):\n    return await ctx.human('a') + await ctx.human('b')\n"
    )
    ran = run_program(source, "--n", 2, "--human", "x", "--human", "y")
    assert ran.out == "asks-1: xy\nasks-2: xy\n"


def test_the_graph_is_written_even_when_the_program_fails(tmp_path: Path, run_program: Run) -> None:
    source = "@program\nasync def bad(ctx):\n    await ctx.llm('a')\n    raise ValueError\n"
    target = tmp_path / "graph.json"
    assert run_program(source, "--dag", target).code == 1
    assert len(json.loads(target.read_text())["nodes"]) == 1


@pytest.mark.parametrize(
    "signals",
    [
        (signal.SIGINT,),
        (signal.SIGHUP,),
        (signal.SIGTERM, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
    ],
)
def test_a_signal_stops_the_programs_and_after_sigterm_a_second_one(
    signals: tuple[int, ...], run_program: Run
) -> None:
    before = signal.getsignal(signals[-1])
    ran = run_program(hangs(*signals))
    assert (ran.code, ran.out) == (128 + signals[-1], "tidied\n")
    assert ran.said.endswith(STOPPED)
    assert signal.getsignal(signals[-1]) is before


def test_ctrl_c_says_how_recorded_programs_go_on(run_program: Run, tmp_path: Path) -> None:
    """They go on only from a journal that has their answers."""
    for content in ("full", "digest"):
        path = tmp_path / content
        ran = run_program(hangs(signal.SIGINT), "--journal", path, "--journal-content", content)
        told = f"recorded so far: {path}; the same command resumes the programs\n" in ran.err
        assert (ran.code, told) == (130, content == "full")


def test_sigterm_lets_the_programs_finish(run_program: Run) -> None:
    source = (
        "import asyncio, os, signal\n@program\nasync def ends(ctx):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    for _ in range(3): await asyncio.sleep(0)\n"
        "    return str(await ctx.llm('to the end'))\n"
    )
    before = signal.getsignal(signal.SIGTERM)
    ran = run_program(source)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (ran.code, ran.out) == (0, "to the end\n")
    assert "SIGTERM: finishing 1 program," in ran.err


@pytest.mark.parametrize(("live", "results", "code"), [(1, 2, 1), (5, 5, 0)])
def test_programs_that_sigterm_kept_from_starting_have_no_result(
    live: int, results: int, code: int, run_program: Run
) -> None:
    source = (
        "import os, signal\nbegun = 0\n@program\nasync def ends(ctx):\n"
        "    global begun\n    begun += 1\n"
        "    if begun == 2: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return str(await ctx.llm('to the end'))\n"
    )
    ran = run_program(source, "--n", 5, "--max-live", live, "--json")
    assert (ran.code, ran.json["results"]) == (code, ["to the end"] * results)
    assert ("error: SIGTERM came before all programs had started" in ran.err) == bool(code)


def test_a_result_for_people_is_standard_json(run_program: Run) -> None:
    source = "@program\nasync def measures(ctx):\n    return {'é': [float('nan'), float('inf')]}\n"
    assert run_program(source).out == '{"é": ["NaN", "Infinity"]}\n'


def test_no_program_starts_after_sigterm(run_program: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the dashboard starts, before the first program."""

    @asynccontextmanager
    async def starting(*_: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        yield

    monkeypatch.setattr("agentrt.cli.execute.shown", starting)
    ran = run_program(ECHO, "--n", 2, "--dashboard", "--json")
    assert (ran.code, ran.json["results"]) == (1, [])
    assert "SIGTERM: finishing 0 programs, starting no more" in ran.err
    assert "error: SIGTERM came before all programs had started" in ran.err
    assert run_program(ECHO, "--n", 2, "--dashboard").out == ""


def test_so_many_programs_are_live_at_once(run_program: Run) -> None:
    source = (
        "import asyncio\nlive = most = 0\n@program\nasync def counts(ctx):\n"
        "    global live, most\n    live += 1\n    most = max(most, live)\n"
        "    for _ in range(9): await asyncio.sleep(0)\n    live -= 1\n    return most\n"
    )
    results = run_program(source, "--n", 20, "--max-live", 3, "--json").json["results"]
    assert (len(results), max(results)) == (20, 3)


def test_more_programs_than_memory_can_hold_do_not_keep_signals_out(run_program: Run) -> None:
    """Those that run are cancelled at their --timeout, others begin in their place; SIGTERM lets
    what runs come to its end, and nothing new begins.
    """
    source = (
        "import os, signal\nbegun = 0\n@program\nasync def hangs(ctx):\n"
        "    global begun\n    begun += 1\n"
        "    if begun == 5: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await ctx.llm('hang')\n"
    )
    options = ["--n", 100_000_000, "--max-live", 2, "--timeout", 0.01, "--json"]
    ran = run_program(source, *options)
    assert ran.code == 1
    assert "SIGTERM: finishing" in ran.err
    assert 5 <= len(ran.json["programs"]) <= 6


def test_replicas_share_the_work(run_program: Run) -> None:
    source = "@program\nasync def ask(ctx, text): return str(await ctx.llm(text))\n"
    options = ["--replicas", "2", "--router", "round-robin", "--json"]
    options += ["--", "--kv-cache-memory-bytes", str(64 << 20)]  # other tests need memory, too
    value = run_program(source, "--input", "hi", "--n", "4", *options).json
    assert value["results"] == ["hi"] * 4
    replicas = value["engine"]["replicas"]
    assert [(one["name"], one["state"]) for one in replicas] == [
        ("replica-0", "ready"),
        ("replica-1", "ready"),
    ]
    assert value["engine"]["steps"] == 14, "two echo engines, 7 each"
