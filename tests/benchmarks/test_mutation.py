"""The table of `python -m benchmarks mutation`; the trials themselves take minutes."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.mutation.command import KILLED, SURVIVED, TIMED_OUT, UNTESTED, table


def write(folder: Path, module: str, *exits: int | None) -> None:
    file = folder / f"{module}.py.meta"
    file.parent.mkdir(parents=True, exist_ok=True)
    codes = {f"{file.parent.name}.f__mutmut_{n}": code for n, code in enumerate(exits, 1)}
    file.write_text(json.dumps({"exit_code_by_key": codes}), encoding="utf-8")


def test_a_row_counts_what_was_tried_by_module(tmp_path: Path) -> None:
    write(tmp_path, "graph/dag", KILLED, SURVIVED, None, TIMED_OUT)
    write(tmp_path, "router/speed", KILLED, UNTESTED)
    write(tmp_path, "scheduler/table", None)
    lines = table(tmp_path).splitlines()
    assert [line.replace(" ", "") for line in lines[2:5]] == [
        "|graph/dag.py|3|1|1|67%|",
        "|router/speed.py|2|0|1|50%|",
        "|all|5|1|2|60%|",
    ]
    assert lines[-2:] == ["- graph.f__mutmut_2", "- router.f__mutmut_2"]


def test_without_survivors_it_says_so(tmp_path: Path) -> None:
    write(tmp_path, "graph/dag", KILLED)
    assert table(tmp_path).splitlines()[-1] == "- none"
