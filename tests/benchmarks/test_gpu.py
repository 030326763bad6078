"""`benchmarks gpu` without an engine: what fits into the time, and what is there at any end.

In the place of engines stands virtual time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import EngineDiedError
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.reports.standard import GoodputLimits, standard
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.workloads.shape import ProgramShape
from benchmarks.__main__ import call
from benchmarks.gpu import command as gpu
from benchmarks.gpu.plan import ENGINES, SIZES, Budget, engine_of, in_order
from benchmarks.gpu.predict import Prediction, predictor, virtual_options
from benchmarks.gpu.report import CAPPED, OFFLOADS, UNCAPPED, Cell

TIMES = StepTimeModel(2e-3, 1e-5, 1e-5, 0.0)


# -- the time ------------------------------------------------------------------------------


def budget(left_s: float, **more: Any) -> Budget:
    """Each cell over a part of the memory takes 10 s in virtual time, and an engine 60 to start."""
    known = {(CAPPED, who): 10.0 for group in ENGINES for who in group}
    return Budget(left_s, clock=lambda: 0.0, predicted_s=known, **more)


CELLS = [cell for group in in_order([0, 1]) for cell in group]


def names(found: set[Cell]) -> set[tuple[str, int]]:
    return {(one.memory, one.seed) for one in found}


def test_the_first_seed_over_little_memory_comes_first() -> None:
    """Five cells of 15 s and four engines of 60 s; then the other seed, then all memory."""
    for left_s, expected in (
        (316.0, {(CAPPED, 0)}),
        (391.0, {(CAPPED, 0), (CAPPED, 1)}),
        (706.0, {(CAPPED, 0), (CAPPED, 1), (UNCAPPED, 0)}),
        (9000.0, {(CAPPED, 0), (CAPPED, 1), (UNCAPPED, 0), (UNCAPPED, 1)}),
    ):
        found = budget(left_s).fitting(CELLS)
        assert names(found) == expected
        contenders_each = 5
        assert len(found) == contenders_each * len(expected)
    # Without time for the last engine, those that run have their other seed.
    short = budget(299.0).fitting(CELLS)
    assert {(one.contender, one.seed) for one in short} == {
        *((who, seed) for who in ("stock", "default", OFFLOADS[0]) for seed in (0, 1)),
        ("thunderagent", 0),
    }


def test_the_defaults_come_before_a_rival() -> None:
    """The rival could share the engine that is started; the defaults need a start and its time."""
    left = [cell for cell in CELLS if cell != Cell(CAPPED, "stock", 0)]
    for left_s, expected in ((76.0, {"default"}), (91.0, {"default", "thunderagent"})):
        found = budget(left_s).fitting(left, (CAPPED, "stock"))
        assert {(cell.contender, cell.seed) for cell in found if cell.seed == 0} == {
            (name, 0) for name in expected
        }


def test_each_cell_knows_what_is_left() -> None:
    """Started engines cost nothing more; cells that took twice as long are expected to again."""
    time = budget(70.0)
    stock = [cell for cell in CELLS if engine_of(cell) == (CAPPED, "stock")]
    assert time.fitting(stock) == set()
    assert len(time.fitting(stock, (CAPPED, "stock"))) == 4
    time.ran(stock[0], 20.0)
    assert len(time.fitting(stock[1:], (CAPPED, "stock"))) == 2
    unknown = Budget(90.0, clock=lambda: 0.0, predicted_s={(CAPPED, "stock"): 50.0})
    other = Cell(UNCAPPED, "default", 0)
    assert unknown.takes_s(other) == pytest.approx(3 + 1.2 * 50), "it may be as slow as stock"


def test_engines_are_opened_once_and_who_shares_one_alternates() -> None:
    groups = in_order([0, 1])
    assert [engine_of(group[0]) for group in groups] == [
        *((CAPPED, name) for name in ("stock", "default", *OFFLOADS)),
        *((UNCAPPED, name) for name in (*OFFLOADS[::-1], "default", "stock")),
    ]
    shared = [(cell.contender, cell.seed) for cell in groups[0]]
    assert shared == [("stock", 0), ("thunderagent", 0), ("thunderagent", 1), ("stock", 1)]


def test_the_published_jobs_are_whole() -> None:
    size = SIZES["llama-8b"]
    assert size.blocks * size.block_size == 458_000
    whole = size.whole().programs(0)
    assert (len(whole), max(len(one.calls) for one in whole)) == (100, 26)
    some = size.programs(0)
    assert max(len(one.calls) for one in some) == 6
    assert max(one.calls[-1].prompt_tokens for one in some) < size.longest


# -- the predictions -----------------------------------------------------------------------


@pytest.mark.engine
async def test_each_run_is_predicted_once_and_alike_in_every_process() -> None:
    size = replace(SIZES["tiny"], jobs=2)
    wanted = [
        Prediction(name, 0, size, virtual_options(Engine().sizes()), TIMES)
        for name in ("stock", "default", "stock")
    ]
    with predictor(1) as here, predictor(4) as elsewhere:
        made = await here.make(wanted)
        assert made[0] is made[2]
        assert (await here.make(wanted))[1] is made[1]
        assert await elsewhere.make(wanted) == made


def cells_of(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_an_earlier_run_is_predicted_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its records have one cell of stock. Without a run there is nothing to predict."""
    size = replace(SIZES["tiny"], jobs=2)
    engine = Engine().sizes()
    about = {"options": {"seed": 0}, "jobs": asdict(size), "step_time": asdict(TIMES)}
    (tmp_path / "about.json").write_text(json.dumps(about | {"engine": engine}))
    assert call(["gpu", "--predict", str(tmp_path)]) == 2
    assert "has no finished run of benchmarks gpu" in capsys.readouterr().err
    ran = Prediction("stock", 0, size, virtual_options(engine), TIMES).run()
    real = standard(ran.outcomes, GoodputLimits())
    record = {"cell": asdict(Cell(CAPPED, "stock", 0)), "blocks": 64, "real": real}
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    assert call(["gpu", "--predict", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()
    stock, other = (
        next(row for row in rows if f"| {name} " in row) for name in ("stock", "default")
    )
    mean, *_, ratio = (cell.split(" / ") for cell in cells_of(stock))
    assert mean[0] == mean[1]
    assert ratio == ["1.00", "1.00"]
    assert all(cell.startswith("- / ") for cell in cells_of(other))
    assert call(["gpu", "--predict", str(tmp_path), "--", "--max-num-batched-tokens", "32"]) == 0
    assert next(row for row in capsys.readouterr().out.splitlines() if "| stock " in row) != stock
    assert call(["gpu", "--predict", str(tmp_path), "--", "--seed", "1"]) == 2
    assert "--seed changes no prediction" in capsys.readouterr().err


# -- its ends ------------------------------------------------------------------------------


class Engine:
    """An engine of a size."""

    def sizes(self) -> dict[str, Any]:
        sizes = {"max_num_seqs": 4, "max_model_len": 1024, "max_num_batched_tokens": 512}
        return {**sizes, "kv_blocks": 64, "block_size": 32, "async_scheduling": True}


class Stand:
    """Serves in virtual time; at its ``last`` cell it does something else."""

    def __init__(self, patch: pytest.MonkeyPatch, last: int) -> None:
        self.served: list[str] = []
        self.last = last
        patch.setattr(gpu, "engine_for", lambda one, base: Engine())
        patch.setattr(gpu, "started", lambda engine: nullcontext())
        patch.setattr(gpu, "warm_up", self.warm_up)
        patch.setattr(gpu, "serve", self.serve)

    async def warm_up(self, *args: object) -> None:
        pass

    async def serve(
        self, engine: Any, one: Contender, programs: Sequence[ProgramShape], **more: Any
    ) -> RunOutcome:
        if len(self.served) == self.last:
            await self.end()
        self.served.append(more["run"].removeprefix("/"))
        return one.run(programs, virtual_options(engine.sizes()), TIMES)

    async def end(self) -> None:
        raise EngineDiedError("it is dead")


class Interrupted(Stand):
    signal = signal.SIGINT

    async def end(self) -> None:
        os.kill(os.getpid(), self.signal)
        await asyncio.Event().wait()


class Terminated(Interrupted):
    signal = signal.SIGTERM


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    (tmp_path / "times.json").write_text(TIMES.as_text())
    size = ["--model-shape", "tiny", "--programs", "2", "--step-time", str(tmp_path / "times.json")]
    return ["gpu", *size, "--out", str(tmp_path / "out")]


def check(stand: Stand, out: Path, text: str) -> None:
    """Every cell is told of, on the screen and in the files; those served have their figures."""
    told = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    done = [str(Cell(**one["cell"])) for one in told if "real" in one]
    assert done == stand.served
    left = [str(Cell(**one["cell"])) for one in told if "not_run" in one]
    assert sorted([*done, *left]) == sorted(map(str, CELLS))
    assert (out / "tables.md").read_text() == text
    assert all(f"- {one}: " in text for one in left)
    assert text.count("The predictions of virtual time") == len({one.split(",")[0] for one in done})
    assert (out / "jobs.svg").exists() is bool(done)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("last", "kind", "code"),
    [(0, Interrupted, 130), (1, Terminated, 143), (6, Interrupted, 130)],
)
def test_what_is_there_is_printed_and_written_at_a_signal(
    asked: list[str],
    last: int,
    kind: type[Stand],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = kind(monkeypatch, last)
    assert call(asked) == code
    assert len(stand.served) == last
    check(stand, tmp_path / "out", capsys.readouterr().out)


@pytest.mark.engine
def test_an_engine_that_dies_costs_its_own_cells(
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It dies as the second of its four cells is served; the others have engines of their own."""
    stand = Stand(monkeypatch, last=1)

    async def end() -> None:
        stand.last = -1
        raise EngineDiedError("it is dead")

    monkeypatch.setattr(stand, "end", end)
    assert call(asked) == 1
    found = capsys.readouterr()
    assert "capped, stock: it is dead" in found.err
    assert "- capped, thunderagent, seed 0: the engine failed: it is dead" in found.out
    assert len(stand.served) == 1 + 2 + 2 + 4
    check(stand, tmp_path / "out", found.out)


@pytest.mark.engine
def test_who_hangs_is_stopped_when_the_time_is_up(
    asked: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock jumps to the end as the third cell is served."""
    stand = Stand(monkeypatch, last=2)
    real = asyncio.timeout
    waiting: list[asyncio.Timeout] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        waiting.append(real(seconds))
        return waiting[-1]

    async def end() -> None:
        monkeypatch.setattr(Budget, "left_s", 0.0)
        waiting[-1].reschedule(0.0)
        await asyncio.Event().wait()

    monkeypatch.setattr("benchmarks.gpu.command.asyncio.timeout", timeout)
    monkeypatch.setattr(stand, "end", end)
    assert call(asked) == 0
    text = capsys.readouterr().out
    assert "- capped, thunderagent, seed 1: its time was up" in text
    assert "- uncapped, default, seed 0: no time was left for it" in text
    check(stand, tmp_path / "out", text)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--kv-blocks", "32"], "--kv-blocks 32: a call may fill 32 blocks"),
        (["--kv-blocks", "32"], "give at least 33"),
        (
            ["--kv-blocks", "33", "--goodput", "itl:5"],
            "give milliseconds, as in ttft:2000,tpot:100,jct:60000",
        ),
    ],
)
def test_what_cannot_be_is_refused(
    asked: list[str], more: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call([*asked, *more]) == 2
    assert words in capsys.readouterr().err
    assert call([*asked, *more]) == 2, "the folder may be used again"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("word", ["ttft", "ttft:x", "itl:5", "jct:0", "tpot:-1"])
def test_a_limit_that_is_none_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["gpu", "--predict", ".", "--goodput", word]) == 2
    assert "ttft:2000,tpot:100,jct:60000" in capsys.readouterr().err
