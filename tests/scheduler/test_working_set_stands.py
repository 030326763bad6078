"""The working set where nothing runs: who is waited for, for how long, and who comes in then."""

from __future__ import annotations

import math

import pytest

from tests.scheduler.admitting import BLOCK, TOKEN_S, Counted

STILL_S = 2 * 10 * BLOCK * TOKEN_S
"""Twice what ten blocks take to compute."""
WORTH_S = 100 * BLOCK * TOKEN_S


class Standing(Counted):
    """Program a is in a tool with 90 of 100 blocks, and nothing runs. Ten more have no room."""

    def __init__(self, **more: object) -> None:
        super().__init__(slots=2, **more)
        call = self.wants("a", 90)
        self.step(0.0)
        self.end(call, output=0)
        self.admission.interrupt_began("a", "tool", None, self.now)
        self.let_in(0)

    def at(self, moment: float) -> set[str]:
        """Who is in the set at a moment, nothing running."""
        self.now = moment
        self.let_in(0)
        return self.inside()


def test_a_newcomer_waits_for_a_member_for_twice_what_it_takes_to_compute() -> None:
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    assert engine.admission.next_moment() == STILL_S
    assert engine.at(STILL_S - 1e-9) == {"a"}
    assert engine.at(STILL_S) == {"a", "b"}


def test_the_wait_begins_when_somebody_waits_and_nothing_runs() -> None:
    engine = Standing()
    engine.now = 0.5
    engine.wants("b", 10)
    assert engine.at(0.5) == engine.at(0.5 + STILL_S - 1e-9) == {"a"}
    assert engine.at(0.5 + STILL_S) == {"a", "b"}


def test_who_comes_back_meanwhile_is_not_pushed_out() -> None:
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(STILL_S / 2) == {"a"}
    engine.admission.interrupt_ended("a", "tool", engine.now)
    again = engine.arrive("a", 0)
    engine.step(0.0)
    assert engine.inside() == {"a"}
    engine.now = 1.0
    engine.end(again, output=0)
    # Who waited before waits anew: the engine had something to do.
    assert engine.at(1.0) == engine.at(1.0 + STILL_S - 1e-9) == {"a"}
    assert engine.at(1.0 + STILL_S) == {"a", "b"}


def test_nobody_waits_for_a_member_whose_time_is_up() -> None:
    engine = Standing()
    engine.wants("b", 90)
    assert engine.at(0.0) == {"a"}
    assert engine.admission.next_moment() == WORTH_S < 9 * STILL_S
    assert engine.at(WORTH_S) == {"b"}


@pytest.mark.parametrize("what", ["ends", "asks"])
def test_nobody_waits_for_who_has_ended_or_asks_a_human(what: str) -> None:
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    if what == "ends":
        engine.end_program("a")
    else:
        engine.admission.interrupt_ended("a", "tool", engine.now)
        engine.admission.interrupt_began("a", "human", None, engine.now)
    assert engine.at(0.0) == {"b"}
    assert engine.admission.next_moment() == math.inf


def test_nobody_waits_past_the_target() -> None:
    engine = Standing(ttft_target=0.1)
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    assert engine.admission.next_moment() == 0.1
    assert engine.at(0.1) == {"a", "b"}


def test_who_runs_beside_is_no_reason_to_come_in() -> None:
    engine = Standing()
    engine.wants("b", 10)
    engine.now = 2 * STILL_S
    engine.let_in(1)
    assert engine.inside() == {"a"}
