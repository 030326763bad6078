"""The values of a history file: which statistics they keep, how the values of several writers are
merged, what is refused, and when the file is written.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.executors import history
from agentrt.executors.history import (
    MOST_BYTES,
    SAVE_EVERY,
    SAVE_SECONDS,
    HistoryFile,
    load,
    merged,
    read,
    saved,
)
from agentrt.scheduler import ProgramTotals, SchedulerConfig, make_policy
from agentrt.scheduler import limits as module
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.durations import LONGEST_S
from agentrt.scheduler.learned.means import WINDOW

GREP = ("acme", "agent", "grep")


def test_what_was_learned_survives_json() -> None:
    learned, other = Learned(), Learned()
    for index in range(8):
        learned.service.learn(("t/ü", "agent", f"turn {index % 3}"), index / 2)
        learned.gaps.learn(GREP, 0.1 * index, well=index % 3 > 0)
    text = json.dumps(saved(learned))
    load(other, json.loads(text))
    assert json.dumps(saved(other)) == text
    assert other.gaps.expect([GREP], 0.2) == learned.gaps.expect([GREP], 0.2)
    assert other.service.expect([("t/ü", "agent", "turn 1")], 1.0).seconds != 1.0


def test_what_calls_are_like_survives_json() -> None:
    learned, other = Learned(), Learned()
    for tokens in (10, 20, 30):
        learned.call_ended(("acme", "agent"), tokens)
    learned.of_type(("acme", "agent")).turn_s.add(2.5)
    learned.of_type(("acme", "unknown"))
    other.of_type(("acme", "other")).output.add(7.0)
    load(other, json.loads(json.dumps(saved(learned))))
    assert saved(other) == saved(learned)
    assert len(saved(learned)["usual"]) == 1
    usual = other.of_type(("acme", "agent"))
    assert (usual.output.n, usual.output.value, usual.turn_s.value) == (3.0, 20.0, 2.5)
    assert other.of_type(("acme", "other")).output.n == 0.0, "what was known before is replaced"


def test_every_statistic_of_an_existing_file_is_kept() -> None:
    """The names and forms in the file stay, because files exist on users' machines."""
    means = {
        "output": [8.0, 52.5],
        "shared": [3.0, 640.0],
        "beside": [8.0, 0.125],
        "calls": [2.0, 4.0],
        "calls_squared": [2.0, 17.0],
        "grown": [6.0, 210.5],
        "turn_s": [6.0, 1.75],
    }
    file = {
        "version": 3,
        "service": [["acme", "agent", "", 0, 2.0, 6.5, 2.0, 1.0]],
        "gaps": [["acme", "agent", "grep", 3, 4.0, 0.25, 5.0, 0.8]],
        "usual": [["acme", "agent", means]],
    }
    learned = Learned()
    load(learned, file)
    assert saved(learned) == file
    stats = learned.of_type(("acme", "agent"))
    assert (stats.output.value, stats.calls_squared.n, stats.turn_s.value) == (52.5, 2.0, 1.75)
    known = learned.gaps.at(("acme", "agent", "grep"), 3)
    assert known is not None
    assert (known.left_s.value, known.well.value) == (0.25, 0.8)


@given(st.lists(st.floats(), min_size=1, max_size=5), st.lists(st.floats(-9.0, 9.0), min_size=1))
def test_whatever_was_measured_what_is_saved_can_be_read(
    odd: list[float], usual: list[float]
) -> None:
    """The time between two calls may be negative, because waits of calls that run at once are
    subtracted.
    """
    learned = Learned()
    for values, mean in (
        (odd, learned.of_type(("acme", "odd")).grown),
        (usual, learned.of_type(("acme", "agent")).turn_s),
    ):
        for value in values:
            mean.add(value)
    load(Learned(), json.loads(json.dumps(saved(learned), allow_nan=False)))
    load(Learned(), merged(saved(Learned()), saved(learned), saved(learned)))


def test_a_name_that_is_not_text_is_left_out() -> None:
    """The JSON of a client can contain half of a surrogate pair."""
    learned, other = Learned(), Learned()
    for name in ("agent", "\ud800", "größe"):
        learned.service.learn(("acme", name, ""), 0.0)
        learned.call_ended(("acme", name), 9)
    load(other, json.loads(json.dumps(saved(learned))))
    assert [row[1] for row in saved(other)["service"]] == ["agent", "größe"]
    assert [row[1] for row in saved(other)["usual"]] == ["agent", "größe"]


def test_a_file_without_what_calls_are_like_is_taken() -> None:
    """Files of version 0.2 have no typical values of calls."""
    learned = Learned()
    load(learned, {"version": 3, "service": [row()], "gaps": []})
    assert "usual" not in saved(learned)


@pytest.mark.parametrize(
    "usual",
    [
        7,
        [7],
        [["acme", "agent"]],
        [["acme", "agent", {"output": 7}]],
        [["acme", "agent", {"output": [1.0, math.nan]}]],
        [["acme", "agent", {"output": [-1.0, 1.0]}]],
        [["acme", "agent", {"output": [1.0, 1e300]}]],
        [["acme", "agent", {"output": [257.0, 1.0]}]],
        [[7, "agent", {}]],
    ],
)
def test_what_calls_are_not_like_is_refused(usual: Any) -> None:
    with pytest.raises(ConfigError, match=r"^this is not a history of programs: usual"):
        load(Learned(), {"version": 3, "service": [], "gaps": [], "usual": usual})


def row(**changes: Any) -> list[Any]:
    values = {"tenant": "d", "type": "t", "what": "", "age": 1, "n": 1.0, "mean": 1.0}
    return list({**values, "ends": 2.0, "share": 0.5, **changes}.values())


def values_of(where: str = "gaps", *rows: Any) -> dict[str, Any]:
    return {"version": 3, "service": [], "gaps": [], where: list(rows)}


@pytest.mark.parametrize("where", ["gaps", "service"])
@pytest.mark.parametrize(
    "good", [row(), row(n=0.0, mean=0.0, share=0.0), row(n=WINDOW, mean=LONGEST_S, share=1.0)]
)
def test_good_rows_are_taken(where: str, good: list[Any]) -> None:
    learned = Learned()
    load(learned, values_of(where, good))
    assert saved(learned) == values_of(where, good)


BAD_ROWS = [
    7,
    row()[:-1],
    [*row(), 1.0],
    row(tenant=None),
    row(type=["t"]),
    row(what=7),
    row(age="high"),
    row(age=math.inf),
    row(age=math.nan),
    *(row(**{name: value}) for name in ("n", "ends") for value in (-1.0, math.nan, 257.0, "x")),
    *(row(mean=value) for value in ("long", -1.0, math.nan, math.inf, 1e300)),
    *(row(share=value) for value in (-0.1, 1.1, math.nan, None)),
]


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "history",
        {},
        {"version": 3},
        {"version": 3, "service": [], "gaps": 7},
        *(values_of(where, bad) for where in ("service", "gaps") for bad in BAD_ROWS),
    ],
)
def test_what_was_never_learned_is_refused_and_changes_nothing(values: Any) -> None:
    learned = Learned()
    learned.gaps.learn(GREP, 3.0)
    before = saved(learned)
    with pytest.raises(ConfigError, match=r"^this is not a history of programs: "):
        load(learned, values)
    assert saved(learned) == before


@pytest.mark.parametrize("version", [0, 2, "one", None])
def test_another_version_is_refused_whatever_is_in_it(version: Any) -> None:
    with pytest.raises(
        ConfigError, match=f"has version {version}, but this agentrt needs version 3"
    ):
        load(Learned(), {"version": version, "rows": []})


def test_of_too_many_kinds_the_first_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KINDS", 3)
    learned, rows = Learned(), [row(what=name) for name in "abcd"]
    load(learned, values_of("service", *rows))
    assert saved(learned) == values_of("service", *rows[1:])


# -- several writers -------------------------------------------------------------------

Lives = list[tuple[str, float, bool]]
"""Gaps that ended: the tool, the seconds, and whether the program returned."""
lives = st.lists(
    st.tuples(st.sampled_from(["grep", "build"]), st.floats(0.0, 1e4), st.booleans()), max_size=12
)


def knowing(learned: Learned, gaps: Lives) -> dict[str, Any]:
    for tool, seconds, well in gaps:
        learned.gaps.learn(("acme", "agent", tool), seconds, well=well)
        learned.call_ended(("acme", "agent"), int(seconds))
    values: dict[str, Any] = json.loads(json.dumps(saved(learned)))
    return values


def figures(values: dict[str, Any]) -> dict[Any, list[float]]:
    rows = {tuple(one[:4]): one[4:] for one in values["gaps"]}
    return rows | {tuple(one[:2]): one[2]["output"] for one in values.get("usual", ())}


@given(base=lives, ours=lives, theirs=lives)
def test_two_writers_know_together_what_a_single_one_would(
    base: Lives, ours: Lives, theirs: Lives
) -> None:
    first, second, whole = Learned(), Learned(), Learned()
    before = knowing(first, base)
    knowing(second, base)
    both = merged(before, knowing(first, ours), knowing(second, theirs))
    expected = figures(knowing(whole, [*base, *ours, *theirs]))
    found = figures(both)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert found[key] == pytest.approx(values, rel=1e-6, abs=1e-6)
    load(Learned(), both)


@given(many=st.integers(200, 600), more=st.integers(1, 300))
def test_where_old_samples_have_faded_the_mean_is_between_both(many: int, more: int) -> None:
    first, second = Learned(), Learned()
    before = knowing(first, [("grep", 10.0, True)] * many)
    knowing(second, [("grep", 10.0, True)] * many)
    slower = knowing(first, [("grep", 40.0, True)] * more)
    both = merged(before, slower, knowing(second, [("grep", 20.0, False)] * more))
    load(Learned(), both)
    for values in figures(both).values():
        assert values[0] <= WINDOW
    at_once = figures(both)["acme", "agent", "grep", 0]
    assert 10.0 <= at_once[1] <= 40.0
    assert at_once[3] < 1.0


def test_what_a_single_side_saw_or_forgot_is_kept() -> None:
    base = values_of("service", row(what="old"), row(what="forgotten"))
    ours = values_of("service", row(what="old", n=3.0), row(what="mine"))
    theirs = values_of("service", row(what="forgotten"), row(what="old"), row(what="yours"))
    both = merged(base, ours, theirs)["service"]
    assert [one[2] for one in both] == ["forgotten", "yours", "old", "mine"]
    assert both[2][4] == 3.0


# -- files -----------------------------------------------------------------------------


def opened(path: Path, **options: Any) -> HistoryFile:
    return HistoryFile(make_policy(SchedulerConfig()), str(path), learns=True, **options)


def learn(file: HistoryFile, programs: int, type: str = "t", seconds: float = 3.0) -> None:
    for number in range(programs):
        file.learn(ProgramTotals(f"{type}-{number}", type, service_s=seconds))


def ended(path: Path, type: str) -> float:
    """Return the number of programs of a type in the file."""
    rows = read(path)["service"]
    return sum(float(one[4]) for one in rows if one[1:4] == [type, "", 0])


def test_a_writer_adds_to_what_another_one_has_written(tmp_path: Path) -> None:
    """Both writers began with the same file. In the end, the file has what both learned."""
    path = tmp_path / "history.json"
    start = opened(path)
    learn(start, 3)
    start.save()
    first, second = opened(path), opened(path)
    learn(first, 5)
    learn(second, 7)
    learn(second, 2, "only here")
    first.save()
    second.save()
    assert (ended(path, "t"), ended(path, "only here")) == (15.0, 2.0)
    learn(first, 1)
    first.save()
    assert (ended(path, "t"), ended(path, "only here")) == (16.0, 2.0)
    assert first.values() == read(path), "a writer knows what the others know, once it has written"


def test_a_file_is_written_at_most_every_30_seconds(tmp_path: Path) -> None:
    path, clock = tmp_path / "history.json", [1000.0]
    file = opened(path, clock=lambda: clock[0])
    learn(file, SAVE_EVERY)
    assert ended(path, "t") == SAVE_EVERY
    clock[0] += SAVE_SECONDS - 1.0
    learn(file, 2 * SAVE_EVERY)
    assert ended(path, "t") == SAVE_EVERY
    clock[0] += 1.0
    learn(file, 1)
    assert ended(path, "t") == 3 * SAVE_EVERY + 1


def test_a_file_has_a_bounded_size_and_keeps_what_was_seen_last(tmp_path: Path) -> None:
    """Names of programs come from clients, and may have any length."""
    path = tmp_path / "history.json"
    file = opened(path)
    for number in range(400):
        learn(file, 1, f"{number:04}{'x' * 1000}")
    file.save()
    assert MOST_BYTES / 2 < path.stat().st_size <= MOST_BYTES
    assert ended(path, f"0399{'x' * 1000}") == 1.0
    assert ended(path, f"0000{'x' * 1000}") == 0.0
    learn(file, 1, "y" * 2 * MOST_BYTES)
    file.save()
    assert path.stat().st_size <= MOST_BYTES


def test_while_another_process_writes_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the next end of a program, the engine tries again to write. The last write waits, but not
    without a limit.
    """
    path = tmp_path / "history.json"
    file = opened(path)
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        learn(file, 2 * SAVE_EVERY)
        assert not path.exists()
        fcntl.flock(other, fcntl.LOCK_UN)
        learn(file, 1)
        assert ended(path, "t") == 2 * SAVE_EVERY + 1
        fcntl.flock(other, fcntl.LOCK_EX)
        learn(file, 1)
        monkeypatch.setattr(history, "_WAIT_S", 0.001)
        file.save()
    finally:
        os.close(other)
    assert ended(path, "t") == 2 * SAVE_EVERY + 2


def test_a_file_that_somebody_spoils_is_left_alone(tmp_path: Path) -> None:
    warnings: list[str] = []
    path = tmp_path / "history.json"
    file = opened(path, warn=warnings.append)
    learn(file, 1)
    file.save()
    path.write_text("not a history")
    for _ in range(2):
        learn(file, 1)
        file.save()
    assert path.read_text() == "not a history"
    assert len(warnings) == 1, "once"
    assert warnings[0].startswith(f"the learned statistics of programs are not saved: {path}: ")


def test_a_file_that_was_deleted_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    file = opened(path)
    learn(file, 2)
    file.save()
    path.unlink()
    learn(file, 1)
    file.save()
    assert ended(path, "t") == 3.0
    assert [one.name for one in tmp_path.iterdir()] == ["history.json"], "no drafts"
