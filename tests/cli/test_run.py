"""`agentrt run` in this process, on an engine that echoes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Write

ECHO = "@program\nasync def echo(ctx, text='tea'):\n    return str(await ctx.llm(str(text)))\n"
KEYS = [
    "id",
    "type",
    "state",
    "wall_s",
    "service_s",
    "waiting_s",
    "interrupt_s",
    "critical_path_s",
    "calls",
    "output_tokens",
    "prompt_tokens",
    "cached_tokens",
    "preemptions",
]


def test_the_result_alone_is_on_stdout(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("run", write(ECHO)) == 0
    assert capsys.readouterr().out == "tea\n"


def test_json_is_one_line_of_the_documented_shape(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(ECHO.replace("    return", "    print('hello')\n    return"))
    assert invoke("run", path, "--n", 3, "--json", "--policy", "plas", "--", "--x", "1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:-1] == ["hello"] * 3
    value = json.loads(lines[-1])
    assert list(value) == [
        "results",
        "programs",
        "interrupts",
        "outside_calls",
        "engine",
        "policy",
    ]
    assert (value["interrupts"], value["outside_calls"]) == ([], 0)
    assert value["results"] == ["tea"] * 3
    assert [program["id"] for program in value["programs"]] == ["echo-1", "echo-2", "echo-3"]
    assert set(KEYS) <= set(value["programs"][0])
    assert value["engine"]["table"] == {"runtime": 0, "engine": 0}
    assert value["engine"]["settings"]["flags"] == ["--x", "1"]
    assert value["policy"] == "plas"


@pytest.mark.parametrize(("options", "slots"), [([], 16), (["--max-num-seqs", 3], 3)])
def test_json_has_the_size_of_the_batch_that_the_engine_took(
    options: list[object],
    slots: int,
    write: Write,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke("run", write(ECHO), "--json", *options) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["engine"]["settings"]["max_num_seqs"] == slots


def test_json_tells_of_the_failed_as_well(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("@program\nasync def bad(ctx): raise ValueError('no tea')\n")
    assert invoke("run", path, "--json") == 1
    value = json.loads(capsys.readouterr().out)
    assert value["results"] == [None]
    assert value["programs"][0]["state"] == "failed"
    assert value["programs"][0]["error"] == "ValueError: no tea"


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
    given: str,
    seen: str,
    tmp_path: Path,
    write: Write,
    invoke: Invoke,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.json").write_text('{"cups": 3}')
    (tmp_path / "in.txt").write_text("[not json")
    assert invoke("run", write(ECHO), "--input", given) == 0
    assert capsys.readouterr().out == f"{seen}\n"


def test_answers_in_advance_come_in_order_to_each_program(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        "@program\nasync def asks(ctx):\n    return await ctx.human('a') + await ctx.human('b')\n"
    )
    assert invoke("run", path, "--n", 2, "--human", "x", "--human", "y") == 0
    assert capsys.readouterr().out == "asks-1: xy\nasks-2: xy\n"


def test_the_graph_is_written_even_when_the_program_fails(
    tmp_path: Path, write: Write, invoke: Invoke
) -> None:
    path = write("@program\nasync def bad(ctx):\n    await ctx.llm('a')\n    raise ValueError\n")
    target = tmp_path / "graph.json"
    assert invoke("run", path, "--dag", target) == 1
    assert len(json.loads(target.read_text())["nodes"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_the_programs(
    number: int, write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program sends the signal to itself, then hangs; its cleanup still runs."""
    path = write(
        "import os\n@program\nasync def hangs(ctx):\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    try:\n        await ctx.llm('hang')\n    finally:\n        print('tidied')\n"
    )
    before = signal.getsignal(number)
    assert invoke("run", path) == 128 + number
    assert signal.getsignal(number) is before
    out, err = capsys.readouterr()
    assert out == "tidied\n"
    assert err.splitlines()[-1].endswith("the programs and the engine were stopped")


def test_sigterm_lets_the_programs_finish(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(
        "import asyncio, os, signal\n@program\nasync def ends(ctx):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    for _ in range(3): await asyncio.sleep(0)\n"
        "    return str(await ctx.llm('to the end'))\n"
    )
    before = signal.getsignal(signal.SIGTERM)
    assert invoke("run", path) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    out, err = capfd.readouterr()
    assert out == "to the end\n"
    assert "SIGTERM: finishing 1 programs, nothing new starts; again to stop now" in err


def test_so_many_programs_are_live_at_once(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        "import asyncio\nlive = most = 0\n@program\nasync def counts(ctx):\n"
        "    global live, most\n    live += 1\n    most = max(most, live)\n"
        "    for _ in range(9): await asyncio.sleep(0)\n    live -= 1\n    return most\n"
    )
    assert invoke("run", path, "--n", 20, "--max-live", 3, "--json") == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert (len(results), max(results)) == (20, 3)


def test_more_programs_than_memory_can_hold_do_not_keep_signals_out(
    write: Write, invoke: Invoke, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those that run are cancelled at their --timeout, others begin in their place; SIGTERM lets
    what runs come to its end, and nothing new begins.
    """
    path = write(
        "import os, signal\nbegun = 0\n@program\nasync def hangs(ctx):\n"
        "    global begun\n    begun += 1\n"
        "    if begun == 5: os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await ctx.llm('hang')\n"
    )
    options = ["--n", 100_000_000, "--max-live", 2, "--timeout", 0.01, "--json"]
    assert invoke("run", path, *options) == 1
    out, err = capfd.readouterr()
    assert "SIGTERM: finishing" in err
    assert 5 <= len(json.loads(out)["programs"]) <= 6


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_after_sigterm_a_second_signal_stops_the_programs(
    second: int, write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        "import os, signal\n@program\nasync def hangs(ctx):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        f"    os.kill(os.getpid(), {int(second)})\n"
        "    try:\n        await ctx.llm('hang')\n    finally:\n        print('tidied')\n"
    )
    assert invoke("run", path) == 128 + second
    out, err = capsys.readouterr()
    assert out == "tidied\n"
    assert err.splitlines()[-1].endswith("the programs and the engine were stopped")


def test_replicas_share_the_work(
    write: Write, invoke: Invoke, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write("@program\nasync def ask(ctx, text): return str(await ctx.llm(text))\n")
    options = ["--replicas", "2", "--router", "round-robin", "--json"]
    assert invoke("run", path, "--input", "hi", "--n", "4", *options) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert value["results"] == ["hi"] * 4
    replicas = value["engine"]["replicas"]
    assert [(one["name"], one["state"]) for one in replicas] == [
        ("replica-0", "ready"),
        ("replica-1", "ready"),
    ]
    assert value["engine"]["steps"] == 14, "two echo engines, 7 each"
