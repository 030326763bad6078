"""`benchmarks gpu`: its whole path on a CPU, with real engines of the shape `tiny`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import call

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine


def test_all_tables_of_a_small_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    size = ["--programs", "3", "--kv-blocks", "40", "--seeds", "1"]
    asked = ["gpu", "--minutes", "30", "--model-shape", "tiny", *size]
    assert call([*asked, "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "out" / "tables.md").read_text() == text
    assert "## Capped: 40 KV blocks" in text
    assert "## Uncapped: " in text
    assert "capped, stock+offload, seed 0: vLLM offloads only from GPUs" in text
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    told = [one for one in map(json.loads, lines) if "real" in one]
    assert [(one["cell"]["memory"], one["cell"]["contender"]) for one in told] == [
        *(("capped", name) for name in ("stock", "thunderagent", "default")),
        *(("uncapped", name) for name in ("default", "stock", "thunderagent")),
    ]
    for one in told:
        assert one["real"]["completed"] == len(one["jobs"]) == 3
        assert one["real"]["total_output_tokens"] == one["virtual"]["total_output_tokens"]
        assert one["real"]["total_input_tokens"] == one["virtual"]["total_input_tokens"]
        assert 0 < one["real"]["median_ttft_ms"] <= one["real"]["median_e2el_ms"]
        assert one["real"]["slowdown_small"] > 0
        assert (one["blocks"] == 40) is (one["cell"]["memory"] == "capped")
    about = json.loads((tmp_path / "out" / "about.json").read_text())
    assert about["step_time"]["samples"] > 20
    assert about["vllm"]
    assert str(tmp_path) not in json.dumps(about)
    assert call([*asked, "--out", str(tmp_path / "out")]) == 2
    assert "has the records of another run" in capsys.readouterr().err
