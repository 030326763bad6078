"""``benchmarks memory --held-out``: what it runs, and a run beside an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import call
from benchmarks.memory.cells import ALL_WORKS, HELD_OUT_WORKS, WORKS
from benchmarks.memory.plan import CONTENDERS, plan

NOTHING: dict[str, Any] = {
    **dict.fromkeys(("workload", "memory", "tools", "policy", "caps"), ()),
    **dict.fromkeys(("trace", "seed", "seeds"), None),
    **dict.fromkeys(("held_out", "quick", "real"), False),
}
TRACE = {"trace": Path("agents.jsonl")}


def works(**options: Any) -> list[str]:
    return [cell.workload for cell in plan({**NOTHING, **options}).cells]


def test_what_is_held_out_runs_when_asked_for() -> None:
    assert works() == list(WORKS)
    assert works(**TRACE) == [*WORKS, "recorded"]
    assert sorted(works(held_out=True, **TRACE)) == sorted(ALL_WORKS)
    assert len(ALL_WORKS) == 11
    assert set(works(held_out=True)) == ALL_WORKS.keys() - {"recorded"}
    assert works(held_out=True, workload=("day",)) == ["day"]


def test_held_out_seeds_begin_where_none_was_tuned_on() -> None:
    asked = plan({**NOTHING, "held_out": True})
    assert list(asked.seeds) == [*range(5000, 5005)]
    assert [one.name for one in asked.contenders] == ["stock", "default"]
    assert not asked.caps
    asked = plan({**NOTHING, "held_out": True, "seed": 7, "seeds": 1, "caps": ("1",)})
    assert (list(asked.seeds), asked.caps) == ([7], [1.0])
    usual = plan(NOTHING)
    assert list(usual.seeds) == [*range(5)]
    assert tuple(one.name for one in usual.contenders) == CONTENDERS
    assert len(usual.caps) == 6


def test_recorded_sessions_need_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["memory", "--workload", "recorded"]) == 2
    assert "--workload recorded needs a trace; add --trace FILE" in capsys.readouterr().err
    assert works(held_out=True)
    assert "'recorded' is left out" in capsys.readouterr().err


@pytest.mark.engine
def test_one_table_and_a_run_against_an_earlier_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    small = ["memory", "--held-out", "--programs", "3", "--seeds", "1", "--json"]
    few = [*small, "--workload", ",".join(HELD_OUT_WORKS), "--scale", "0.2"]
    assert call(few) == 0
    printed = capsys.readouterr().out
    before = tmp_path / "before.txt"
    before.write_text(printed, encoding="utf-8")
    rows = [line.split("|")[1:5] for line in printed.splitlines() if line.startswith("|")]
    found = [(row[0].strip(), row[3].strip()) for row in rows[2:]]
    assert found == [(name, who) for name in HELD_OUT_WORKS for who in ("stock", "default")]
    for cell in json.loads(printed.splitlines()[-1])["cells"]:
        assert cell["stock"]["blocks"] < cell["stock"]["wanted"]
        assert (cell["first_seed"], len(cell["by_seed"])) == (5000, 1)
    one = [*small, "--workload", next(iter(HELD_OUT_WORKS)), "--scale", "0.2"]
    assert call([*one, "--against", str(before)]) == 0
    assert "More than 3% worse: none.\n" in capsys.readouterr().out
