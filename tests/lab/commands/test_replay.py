"""`agentrt journal replay` from end to end, on journals that are recorded in virtual time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt import Runtime
from agentrt.cli.app import call
from agentrt.cli.journals import describe_engine
from agentrt.engines import EngineOptions
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.journal import Content
from agentrt.journal.store import SQLiteStore
from agentrt.lab.runs import real
from agentrt.lab.workloads import journals
from agentrt.scheduler import SchedulerConfig
from tests.cli.conftest import check
from tests.lab.answering import WholeEngine
from tests.lab.runs.test_real import write_two
from tests.lab.virtual_world import ATLAS, FCFS, MACHINE, TIMES, World, record_burst
from tests.lab.workloads.test_journals import Written

pytestmark = pytest.mark.engine
REAL = ("--depth", "real")


async def recorded(path: Path, content: Content = "full") -> Path:
    await record_burst(ATLAS, path, content)
    return path


def replayed(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[str, str]:
    capfd.readouterr()  # what vLLM said while the journal was recorded
    assert call(["journal", "replay", *map(str, args)]) == 0
    found = capfd.readouterr()
    return found.out, found.err


def runs(capfd: pytest.CaptureFixture[str], *args: object) -> dict[str, dict[str, Any]]:
    out, _ = replayed(capfd, *args, "--json")
    return {one["policy"]: one for one in json.loads(out)["runs"]}


async def test_the_recording_stands_beside_what_each_policy_would_have_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, times = await recorded(tmp_path / "j"), tmp_path / "times.json"
    times.write_text(TIMES.as_text())
    args = (journal, "--step-time", times, "--policy", "fcfs,atlas,adaptive+cost+memory")
    found = runs(capfd, *args)
    assert list(found) == ["recorded", "atlas", "fcfs", "adaptive+cost+memory"]
    assert found["atlas"]["latencies_s"] == pytest.approx(found["recorded"]["latencies_s"])
    assert found["fcfs"]["latencies_s"] != pytest.approx(found["recorded"]["latencies_s"])
    assert (found["atlas"]["same_order"], found["fcfs"]["same_order"] < 1) == (1.0, True)
    assert found["atlas"]["measures"]["mean_s"]["ratio"] == pytest.approx(1.0)

    out, err = replayed(capfd, *args, "--plot", tmp_path / "plot.svg")
    assert "3 batch slots, 220 KV blocks of 16 tokens, at most 256 tokens a step" in out
    lines = {line.split()[1]: line for line in out.splitlines() if line.startswith("| ")}
    assert lines["atlas"].split()[-2:] == ["1.00", "|"]
    assert {f"main-{number}" for number in range(1, 17)} <= lines.keys()
    assert "(journal): 16 programs with 83 calls; " in err
    drawing = (tmp_path / "plot.svg").read_text()
    assert drawing.startswith("<?xml")


async def test_steps_take_about_as_long_as_the_accounts_of_calls_say(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = runs(capfd, await recorded(tmp_path / "j"))
    makespan = found["atlas"]["measures"]["makespan_s"]["ratio"]
    assert makespan == pytest.approx(1.0, abs=0.05)
    assert found["atlas"]["measures"]["mean_s"]["ratio"] == pytest.approx(1.0, abs=0.1)


async def test_on_more_engines_behind_a_router(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = await recorded(tmp_path / "j")
    out, _ = replayed(capfd, journal, "--replicas", 2, "--router", "cost", "--json")
    told = json.loads(out)
    assert (told["settings"]["replicas"], told["settings"]["router"]) == (2, "cost")
    assert all(one["measures"]["mean_s"]["ratio"] < 0.9 for one in told["runs"][1:])


async def test_without_texts_prompts_are_alike_within_programs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = await recorded(tmp_path / "j", "none")
    out, err = replayed(capfd, journal, "--json")
    assert f"{journals.NO_TEXT}: 16" in err
    assert [one["programs"] for one in json.loads(out)["runs"]] == [16, 16, 16, 16]
    recording = journals.read_recording(journal)
    assert any(call.extends is not None for one in recording.programs for call in one.calls)


async def test_a_journal_that_does_not_say_on_what_it_ran(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its engine is that of the options; it can be a trace of a simulation, too."""
    journal = await recorded(tmp_path / "j")
    with closing(sqlite3.connect(journal)) as writer, writer:
        writer.execute("DELETE FROM agentrt_journal WHERE key LIKE 'engine%'")
    out, err = replayed(capfd, journal, "--max-num-seqs", 2, "--kv-blocks", 300, "--policy", "plas")
    assert "the journal does not say which engine and policy were used" in err
    assert "2 batch slots, 300 KV blocks" in out
    assert "| plas " in out
    args = ["simulate", "run", "--workload", str(journal), "--policy", "plas"]
    args += ["--context-scale", "0.5", "--jobs", "1"]  # other processes would import vLLM anew
    assert call(args) == 0
    assert "16 programs (j), arrivals: recorded." in capfd.readouterr().out


def on_an_engine(patch: pytest.MonkeyPatch, engine: WholeEngine) -> list[EngineOptions]:
    """Let ``engine`` be all that are made: with which options."""
    made: list[EngineOptions] = []

    def make(one: object, base: EngineOptions) -> WholeEngine:
        made.append(base)
        return engine

    patch.setattr(real, "engine_for", make)
    patch.setattr(real, "started", engine.started)
    patch.setattr(real, "open_frontend", engine.front)
    return made


def test_in_real_time_with_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """On the recorded model and sizes, but for what is given; vLLM's flags come last."""
    journal, plot = Written(tmp_path / "j"), tmp_path / "plot.svg"
    write_two(journal)
    path, engine = journal.write(), WholeEngine()
    model = {"model": "org/recorded", "max_model_len": 64, "kv_blocks": 9, "max_num_seqs": 3}
    with closing(sqlite3.connect(path)) as writer, writer:
        settings = json.dumps({**model, "scheduler": ATLAS.to_dict()})
        writer.execute("INSERT INTO agentrt_journal VALUES ('engine', ?)", (settings,))
    made = on_an_engine(monkeypatch, engine)
    given = ("--policy", "fcfs", "--kv-blocks", 8, "--plot", plot, "--", "--dtype", "half")
    out, err = replayed(capfd, path, *REAL, *given)
    [base] = made
    assert (base.model, base.max_num_seqs) == ("org/recorded", 3)
    sizes = ("--num-gpu-blocks-override", "8", "--max-model-len", "64")
    assert tuple(base.flags) == (*sizes, "--dtype", "half")
    assert "**Real time**" in out
    assert "Engine: org/recorded, 8 batch slots" in out
    names = [line.split()[1] for line in out.splitlines() if line.startswith("| ")]
    assert names == ["policy", "recorded", "atlas", "fcfs", "seconds", "p-1", "p-2"]
    assert "2 runs, each of about 0 s" in err
    assert "2 of 4 programs" in err
    assert plot.read_text().startswith("<?xml")
    out, _ = replayed(capfd, path, *REAL, "--model", "m", "--json")
    assert json.loads(out)["settings"]["model"] == "m"


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(WholeEngine):
        async def configure(self, config: SchedulerConfig) -> None:
            await super().configure(config)
            if self.told.count("forget") == done:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()

    journal = Written(tmp_path / "j")
    write_two(journal)
    args = [
        "journal",
        "replay",
        str(journal.write()),
        *REAL,
        "--model",
        "m",
        "--policy",
        "fcfs",
        "atlas",
    ]
    for done, said in ((0, ""), (1, "| fcfs ")):
        on_an_engine(monkeypatch, Interrupted())
        assert call(args) == 130
        out, err = capfd.readouterr()
        assert f"{done} of 2 runs were finished" in err
        assert said in out
        assert "| atlas" not in out


async def test_a_journal_that_two_engines_have_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The sizes of the last engine are replayed, with a note about those in which the engines
    differ, unless options set them; neither's policy is the recorded one.
    """
    path = await recorded(tmp_path / "j")
    other = World(FCFS, replace(MACHINE, max_num_seqs=2).virtual_options(), TIMES)
    async with (
        await Journal.open(lambda: SQLiteStore(path), JournalOptions()) as journal,
        Runtime(other, journal=journal) as runtime,
    ):
        await describe_engine(runtime, FCFS)
    capfd.readouterr()
    out, err = replayed(capfd, path, "--policy", "plas")
    assert (
        f"uses the sizes of the last engine: --max-num-seqs 2 (others: {MACHINE.max_num_seqs})"
        in err
    )
    assert "2 batch slots, 220 KV blocks" in out
    out, err = replayed(capfd, path, "--max-num-seqs", 3, "--policy", "plas")
    assert "several sizes" not in err
    assert "ran under several policies, so no policy is shown as the recorded one" in err
    assert "3 batch slots, 220 KV blocks" in out
    names = [line.split()[1] for line in out.splitlines() if line.startswith("| ")]
    assert names[:3] == ["policy", "recorded", "plas"]


async def test_what_cannot_be_replayed_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal, quiet, empty, text = (tmp_path / name for name in ("j", "quiet", "empty", "text"))
    SQLiteStore(empty).close()
    text.write_text("{}")
    await recorded(journal)
    await recorded(quiet, "digest")
    write_two(written := Written(tmp_path / "bare"))
    bare = written.write()
    for args, said in (
        ((tmp_path / "none",), "does not exist"),
        ((text,), "is not a journal; name a journal of agentrt run --journal"),
        (("postgresql://h/d",), "a replay reads only files"),
        ((empty,), "no program in it made a call and ended (it has no programs)"),
        ((journal, "--policy", "fast"), "unknown policy 'fast'"),
        ((journal, "--policy", "atlas+hints"), "'atlas+hints' needs size hints"),
        ((journal, "--router", "cost"), "--router needs several replicas"),
        ((journal, "--plot", tmp_path / "plot.txt"), "--plot"),
        ((journal, "--model", "m"), "--model needs --depth real"),
        ((journal, "--", "--dtype", "half"), "a flag after -- needs --depth real"),
        ((journal, *REAL, "--step-time", text), "--step-time needs --depth virtual"),
    ):
        capfd.readouterr()
        check(capfd, call(["journal", "replay", *map(str, args)]), said)
    for given, told in (
        ((journal, "--kv-blocks", 20), "KV blocks (--kv-blocks)"),
        ((journal, *REAL, "--policy", "srpt"), "'srpt' runs in virtual time only"),
        (
            (journal, *REAL, "--policy", "stock+ample"),
            "'stock+ample' needs an engine with more memory",
        ),
        ((journal, *REAL, "--replicas", 2), "but there are 2 replicas; add --replicas 1"),
        ((bare, *REAL), "the journal does not say which model was recorded; add --model"),
        ((journal, *REAL, "--model", "./none"), "./none': no such folder"),
        ((quiet, *REAL), "run main-1: --depth real needs the prompts"),
    ):
        assert call(["journal", "replay", *map(str, given)]) == 2
        assert told in capfd.readouterr().err.splitlines()[-1]
