"""`agentrt calibrate` on a made-up engine whose step times are known."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from agentrt.cli.app import call
from agentrt.engines import EngineOptions
from agentrt.errors import EngineStartError
from agentrt.executors.base import Chunk, Progress
from agentrt.lab.commands.calibrate import design
from agentrt.lab.engine.step_time import StepTimeModel, StepWork
from agentrt.request import Call, Reply
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals

pytest.importorskip("numpy")

TRUE = StepTimeModel(0.03, 1e-3, 2e-3, 5e-6)


class MadeUpEngine:
    """Runs each call alone, at the pace of `TRUE`, and keeps its steps."""

    model = "/models/made-up"

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.samples: list[tuple[int, int, int, float]] = []

    async def start(self, progress: Progress) -> None:
        if self.options.model == "broken":
            raise EngineStartError("the engine did not start: no luck")

    def sizes(self) -> dict[str, int]:
        return {"max_model_len": 600, "max_num_seqs": self.options.max_num_seqs or 8}

    async def configure(self, config: SchedulerConfig) -> None:
        assert config.policy == "fcfs"

    async def probe(self, op: str, *, keep_steps: bool = False) -> Any:
        if op == "start":
            assert keep_steps
            self.samples.clear()
        return {"samples": self.samples}

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        assert call.spec.prompt_token_ids is not None
        prompt = len(call.spec.prompt_token_ids)
        assert prompt + call.spec.max_tokens <= 600
        self._step(prompt, 0)
        for done in range(prompt, prompt + call.spec.max_tokens - 1):
            self._step(1, done)
        yield Chunk("", Reply(""))

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        pass

    async def close(self) -> None:
        pass

    def _step(self, count: int, done: int) -> None:
        work = StepWork.of({"c": count}, {"c": done})
        self.samples.append((*astuple(work), TRUE.seconds(work)))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrt.lab.commands.calibrate.LabEngine", MadeUpEngine)
    monkeypatch.setattr("agentrt.lab.commands.calibrate.hardware", lambda: "an abacus")
    monkeypatch.setattr("agentrt.lab.commands.calibrate.vllm_version", lambda: "0.0")


def test_it_measures_fits_tells_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steps.json"
    assert call(["calibrate", "--out", str(out), "--json", "--max-num-seqs", "4"]) == 0
    said = capsys.readouterr()
    assert "made-up on an abacus, vLLM 0.0" in said.out
    assert "| a token of prompt      | 1000.0 us |" in said.out
    assert "round 2 of 2" in said.err
    model = StepTimeModel.load(out)
    assert json.loads(said.out.splitlines()[-1])["samples"] == model.samples
    # Calls run alone here: what a step costs and what its one call costs are one thing.
    assert model.base_s + model.per_decode_s == pytest.approx(0.032, rel=0.05)
    assert model.per_prefill_token_s == pytest.approx(1e-3, rel=0.05)
    assert model.error is not None
    assert model.error < 0.01


def test_a_full_disk_does_not_lose_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "steps.json"
    out.symlink_to("/dev/full")
    assert call(["calibrate", "--out", str(out), "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["samples"] > 0
    assert "cannot be written: no space left on device" in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--out", "steps.txt"], "must end in .json"),
        (["--out", "no/such/steps.json"], "folder 'no/such' does not exist"),
        (["--model", "./nowhere"], "no such folder"),
        (["--rounds", "0"], "0 is not in the range"),
        (["extra"], "unexpected extra argument"),
    ],
)
def test_mistakes_are_told_before_an_engine_starts(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["calibrate", *args]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "loading" not in said.err


def test_an_engine_that_does_not_start_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["calibrate", "--model", "broken"]) == 1
    error = capsys.readouterr().err
    assert "the engine did not start" in error
    assert "Traceback" not in error


@pytest.mark.parametrize("large", [False, True])
def test_every_case_fits_the_engine_and_a_large_one_has_long_contexts(large: bool) -> None:
    for slots, longest in ((4, 512), (256, 32_768)):
        cases = design(slots, longest, large=large)
        assert max(case.batch for case in cases) == slots
        assert max(case.prompt + case.output for case in cases) <= longest
    assert max(case.batch * case.prompt for case in cases) == (262_144 if large else 4096)
