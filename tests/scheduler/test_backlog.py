"""The backlog: the work that is there, and how long it would take."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import ProcessTable, ProgramRow
from agentrt.scheduler.ages import age_bin
from agentrt.scheduler.backlog import _KINDS, Backlog


class Crowd:
    """Programs that come and go, and the backlog that sees them."""

    def __init__(self) -> None:
        self.table = ProcessTable()
        self.units: dict[str, float] = {}
        self.backlog = Backlog(lambda row: self.units[row.program_id])
        self.named = 0

    def come(self, type: str = "t", unit: float = 1.0, hint: float | None = 1.0) -> ProgramRow:
        self.named += 1
        row = self.table.start_program(f"p{self.named}", type, 0.0)
        row.size_hint = hint
        self.units[row.program_id] = unit
        self.backlog.seen(row)
        return row

    def age(self, row: ProgramRow, attained_s: float) -> None:
        row.attained_s = attained_s
        self.backlog.seen(row)

    def end(self, row: ProgramRow, total_s: float) -> None:
        row.service_s = row.attained_s = total_s
        self.backlog.rests(row)
        self.backlog.ended(row)

    def look(self, now: float, running: int, waiting: int, slots: int) -> float:
        self.backlog.look(now, running, waiting, slots)
        return self.backlog.greatest_s

    def learn(self, count: int, total_s: float, type: str = "t") -> None:
        for _ in range(count):
            self.end(self.come(type), total_s)


def test_nobody_knows_the_backlog_before_some_have_ended() -> None:
    crowd = Crowd()
    for _ in range(50):
        crowd.come()
    crowd.learn(7, 4.0)
    assert crowd.look(1.0, 8, 42, 8) == math.inf
    crowd.learn(2, 4.0)
    assert crowd.look(2.0, 8, 42, 8) < math.inf


def test_nothing_is_counted_before_the_first_hint() -> None:
    crowd = Crowd()
    for _ in range(20):
        crowd.end(crowd.come(hint=None), 4.0)
    waits = crowd.come(hint=None)
    assert (len(crowd.backlog), crowd.backlog.left_s) == (0, 0.0)
    assert crowd.look(1.0, 8, 42, 8) == math.inf
    crowd.learn(20, 4.0)
    crowd.backlog.seen(waits)
    assert len(crowd.backlog) == 1, "those without a hint, too, from then on"
    assert crowd.look(2.0, 8, 42, 8) < math.inf


def test_it_is_the_work_of_all_that_are_there_over_the_width_of_the_batch() -> None:
    crowd = Crowd()
    crowd.learn(100, 4.0)
    for _ in range(24):
        crowd.come()
    assert crowd.backlog.left_s == pytest.approx(24 * 4.0, rel=0.3)
    assert crowd.look(0.0, 8, 16, 8) == pytest.approx(12.0, rel=0.3)


def test_who_has_no_call_here_needs_nothing_for_now() -> None:
    crowd = Crowd()
    crowd.learn(100, 4.0)
    rows = [crowd.come() for _ in range(10)]
    before = crowd.backlog.left_s
    for row in rows[:5]:
        crowd.backlog.rests(row)
        crowd.backlog.rests(row)
    assert crowd.backlog.left_s == pytest.approx(before / 2)
    for row in rows[:5]:
        crowd.backlog.seen(row)
    assert crowd.backlog.left_s == pytest.approx(before)


def test_a_kind_that_is_not_known_counts_as_any_other() -> None:
    crowd = Crowd()
    crowd.learn(100, 4.0, "small")
    crowd.learn(100, 400.0, "large")
    crowd.come("new")
    new = crowd.backlog.left_s
    crowd.come("small")
    assert crowd.backlog.left_s - new < 6.0 < 100.0 < new < 400.0


def test_a_program_of_three_units_needs_three_times_as_much() -> None:
    crowd = Crowd()
    crowd.learn(100, 4.0)
    crowd.come()
    one = crowd.backlog.left_s
    crowd.come(unit=3.0)
    assert crowd.backlog.left_s == pytest.approx(4.0 * one)


def test_a_hint_puts_off_who_is_expected_to_be_larger_than_usual() -> None:
    crowd = Crowd()
    crowd.learn(20, 4.0)
    large, small = crowd.come(unit=3.0, hint=7.0), crowd.come(unit=0.3, hint=2.0)
    unhinted = crowd.come(unit=3.0, hint=None)
    assert crowd.backlog.hinted(large)
    assert not crowd.backlog.hinted(small)
    assert not crowd.backlog.hinted(unhinted)
    crowd.backlog.rests(large)
    assert not crowd.backlog.hinted(large)


def test_the_greatest_backlog_of_late_fades() -> None:
    crowd = Crowd()
    crowd.learn(100, 4.0)
    rows = [crowd.come() for _ in range(80)]
    greatest = crowd.look(0.0, 8, 72, 8)
    for row in rows:
        crowd.end(row, 4.0)
    assert crowd.look(1.0, 0, 0, 8) > 0.95 * greatest
    assert crowd.look(10 * greatest, 0, 0, 8) < 0.1 * greatest


def test_the_width_is_what_runs_while_others_wait() -> None:
    """Memory may let fewer run than there are slots; an idle engine says nothing about it."""
    crowd = Crowd()
    crowd.learn(100, 4.0)
    crowd.come()
    for second in range(100):
        crowd.look(float(second), 1, 0, 8)
    assert crowd.backlog._width == 8.0
    for second in range(100, 200):
        crowd.look(float(second), 2, 30, 8)
    assert crowd.backlog._width == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_intact_whatever_comes(seed: int) -> None:
    rng, crowd = Random(seed), Crowd()
    live: list[ProgramRow] = []
    for _ in range(3000):
        row = rng.choice(live) if live else None
        match rng.randrange(4):
            case 0 if len(live) < 60:
                live.append(crowd.come(rng.choice("abc"), rng.uniform(0.2, 5.0)))
            case 1 if row is not None:
                crowd.age(row, row.attained_s + rng.expovariate(0.2))
            case 2 if row is not None:
                crowd.backlog.rests(row)
            case 3 if row is not None:
                live.remove(row)
                crowd.end(row, row.attained_s)
    backlog = crowd.backlog
    left = sum(stay.unit * stay.table.rest[stay.age] for stay in backlog._stays.values())
    assert backlog.left_s == pytest.approx(left, rel=1e-6)
    for row in live:
        stay = backlog._stays.get(row.program_id)
        assert stay is None or stay.age == age_bin(row.attained_s / stay.unit)
        backlog.rests(row)
    assert backlog.left_s == pytest.approx(0.0, abs=1e-6)
    assert len(backlog) == 0


def test_kinds_are_bounded_and_none_is_miscounted_that_is_dropped() -> None:
    crowd = Crowd()
    crowd.learn(20, 1.0, "dropped")
    row = crowd.come("dropped")
    for index in range(2 * _KINDS):
        crowd.learn(1, 1.0, f"t{index}")
    assert len(crowd.backlog._tables) == _KINDS
    assert ("default", "dropped") not in crowd.backlog._tables
    crowd.end(row, 1.0)
    assert crowd.backlog.left_s == pytest.approx(0.0, abs=1e-9)


def test_what_was_learned_is_taken_over() -> None:
    rng, crowd = Random(3), Crowd()
    for _ in range(300):
        crowd.learn(1, rng.lognormvariate(2.0, 1.0), rng.choice("ab"))
    again = Crowd()
    again.backlog.load(json.loads(json.dumps(crowd.backlog.to_rows())))
    for one in (crowd, again):
        for type in "aabn":
            one.come(type)
    assert again.backlog.left_s == pytest.approx(crowd.backlog.left_s)
    assert again.look(0.0, 1, 1, 8) == pytest.approx(crowd.look(0.0, 1, 1, 8))


@pytest.mark.parametrize(
    "rows",
    [
        7,
        [7],
        [["t", "a", [1.0]]],
        [["t", 7, [1.0], [1.0]]],
        [["t", "a", [1.0], [1.0, 2.0]]],
        [["t", "a", [-1.0], [1.0]]],
        [["t", "a", [math.nan], [1.0]]],
        [["t", "a", ["x"], [1.0]]],
        [["t", "a", [1.0] * 99, [1.0] * 99]],
    ],
)
def test_what_no_programs_can_have_left_is_refused(rows: Any) -> None:
    backlog = Backlog()
    with pytest.raises(ConfigError, match="ages of programs"):
        backlog.load(rows)
    assert not backlog._tables


def test_who_knows_ages_from_others_counts_from_then_on() -> None:
    """Hints or not, as they do."""
    teacher, pupil = Crowd(), Crowd()
    teacher.learn(10, 4.0)
    pupil.backlog.load(teacher.backlog.to_rows())
    for crowd in (teacher, pupil):
        row = crowd.come(hint=None)
        assert len(crowd.backlog) == 1
        crowd.end(row, 4.0)
    assert pupil.backlog.to_rows() == teacher.backlog.to_rows()


def test_what_others_learned_may_come_while_programs_live() -> None:
    """The backlog is then what it would be had it been known before."""
    teacher = Crowd()
    teacher.learn(30, 4.0)
    teacher.learn(30, 40.0, "u")
    before, after = Crowd(), Crowd()
    before.backlog.load(teacher.backlog.to_rows())
    for crowd in (before, after):
        for type in "tuuv":
            crowd.come(type, 3.0)
    assert after.backlog.left_s != before.backlog.left_s
    after.backlog.load(teacher.backlog.to_rows())
    for crowd in (before, after):  # a program's table is the one that there was when it came
        for row in list(crowd.table):
            crowd.backlog.rests(row)
        assert crowd.backlog.left_s == pytest.approx(0.0, abs=1e-9)
        for row in list(crowd.table):
            crowd.backlog.seen(row)
        crowd.learn(1, 4.0)  # the living count from the next end on
        crowd.learn(1, 40.0, "u")
    assert after.backlog.left_s == pytest.approx(before.backlog.left_s)
