"""`agentrt replay` from end to end, on journals that are recorded in virtual time."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.cli.app import call
from agentrt.journal.journal import Content
from agentrt.journal.store import SQLiteStore
from agentrt.lab.workloads import journals
from tests.cli.conftest import check
from tests.lab.virtual_world import ATLAS, MACHINE, TIMES, World, burst, record

pytestmark = pytest.mark.engine


async def recorded(path: Path, patch: pytest.MonkeyPatch, content: Content = "full") -> Path:
    world = World(ATLAS, MACHINE.virtual_options(), TIMES)
    await record(world, path, burst(world), patch, content)
    return path


def replayed(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[str, str]:
    capfd.readouterr()  # what vLLM said while the journal was recorded
    assert call(["replay", *map(str, args)]) == 0
    found = capfd.readouterr()
    return found.out, found.err


def runs(capfd: pytest.CaptureFixture[str], *args: object) -> dict[str, dict[str, Any]]:
    out, _ = replayed(capfd, *args, "--json")
    return {one["policy"]: one for one in json.loads(out)["runs"]}


async def test_the_recording_stands_beside_what_each_policy_would_have_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, times = await recorded(tmp_path / "j", monkeypatch), tmp_path / "times.json"
    TIMES.save(times)
    args = (journal, "--step-model", times, "--policy", "fcfs", "atlas", "adaptive+cost+memory")
    found = runs(capfd, *args)
    assert list(found) == ["recorded", "atlas", "fcfs", "adaptive+cost+memory"]
    assert found["atlas"]["latencies_s"] == pytest.approx(found["recorded"]["latencies_s"])
    assert found["fcfs"]["latencies_s"] != pytest.approx(found["recorded"]["latencies_s"])
    assert found["atlas"]["measures"]["mean_s"]["ratio"] == pytest.approx(1.0)

    out, err = replayed(capfd, *args, "--plot", tmp_path / "plot.svg")
    assert "3 batch slots, 220 KV blocks of 16 tokens, 256 tokens a step" in out
    lines = {line.split()[1]: line for line in out.splitlines() if line.startswith("| ")}
    assert lines["atlas"].split()[-2:] == ["100%", "|"]
    assert {f"main-{number}" for number in range(1, 17)} <= lines.keys()
    assert "16 programs with 83 calls (a journal)" in err
    drawing = (tmp_path / "plot.svg").read_text()
    assert drawing.startswith("<?xml")


async def test_steps_take_about_as_long_as_the_accounts_of_calls_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = runs(capfd, await recorded(tmp_path / "j", monkeypatch))
    makespan = found["atlas"]["measures"]["makespan_s"]["ratio"]
    assert makespan == pytest.approx(1.0, abs=0.05)
    assert found["atlas"]["measures"]["mean_s"]["ratio"] == pytest.approx(1.0, abs=0.1)


async def test_on_more_engines_behind_a_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = await recorded(tmp_path / "j", monkeypatch)
    out, _ = replayed(capfd, journal, "--replicas", 2, "--router", "cost", "--json")
    told = json.loads(out)
    assert (told["settings"]["replicas"], told["settings"]["router"]) == (2, "cost")
    assert all(one["measures"]["mean_s"]["ratio"] < 0.9 for one in told["runs"][1:])


async def test_without_texts_prompts_are_alike_within_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = await recorded(tmp_path / "j", monkeypatch, "none")
    out, err = replayed(capfd, journal, "--json")
    assert f"{journals.NO_TEXT}: 16" in err
    assert [one["programs"] for one in json.loads(out)["runs"]] == [16, 16, 16, 16]
    recording = journals.read_recording(journal)
    assert any(call.extends is not None for one in recording.programs for call in one.calls)


async def test_a_journal_that_does_not_say_on_what_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its engine is that of the options; it can be a trace of a simulation, too."""
    journal = await recorded(tmp_path / "j", monkeypatch)
    with closing(sqlite3.connect(journal)) as writer, writer:
        writer.execute("DELETE FROM agentrt_journal WHERE key = 'engine'")
    out, err = replayed(capfd, journal, "--batch", 2, "--kv-blocks", 300, "--policy", "plas")
    assert "neither the engine nor its policy is recorded" in err
    assert "2 batch slots, 300 KV blocks" in out
    assert "| plas " in out
    args = [
        "simulate",
        "run",
        "--trace",
        str(journal),
        "--policy",
        "plas",
        "--context-scale",
        "0.5",
    ]
    assert call(args) == 0
    assert "16 programs (j), arrivals: recorded." in capfd.readouterr().out


async def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, empty, text = (tmp_path / name for name in ("j", "empty", "text"))
    SQLiteStore(empty).close()
    text.write_text("{}")
    await recorded(journal, monkeypatch)
    for args, said in (
        ((tmp_path / "none",), "there is no such file"),
        ((text,), "is no journal: give a file of agentrt run --journal"),
        (("postgresql://h/d",), "a replay reads files alone"),
        ((empty,), "no program in it made a call and ended (it has no programs)"),
        ((journal, "--policy", "fast"), "unknown policy 'fast'"),
        ((journal, "--router", "cost"), "--router chooses among replicas"),
        ((journal, "--plot", tmp_path / "plot.txt"), "--plot"),
    ):
        capfd.readouterr()
        check(capfd, call(["replay", *map(str, args)]), said)
    assert call(["replay", str(journal), "--kv-blocks", "20"]) == 2
    assert "raise kv_blocks" in capfd.readouterr().err
