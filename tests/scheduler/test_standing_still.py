"""When the engine stands still for a member, and when nobody needs to be looked at."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from agentrt.scheduler import QueuedCall
from agentrt.scheduler.working_set import WorkingSet
from tests.scheduler.admitting import BLOCK, TOKEN_S, WORTH_S, Admitting, Counted
from tests.scheduler.integrity import check_queues

# -- where nothing runs ----------------------------------------------------------------

STILL_S = 10 * BLOCK * TOKEN_S
"""What ten blocks take to compute."""


class Standing(Counted):
    """Program a is in a tool with 94 of 100 blocks, and nothing runs. Ten more have no room."""

    def __init__(self, **more: object) -> None:
        super().__init__(slots=2, **more)
        call = self.wants("a", 95)
        self.step(0.0)
        self.end(call, output=0)
        self.begins("a")
        self.let_in(0)

    def at(self, moment: float) -> set[str]:
        """Who is in the set at a moment, nothing running."""
        self.now = moment
        self.let_in(0)
        return self.inside()


def test_a_newcomer_waits_for_a_member_for_what_it_takes_to_compute() -> None:
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
    engine.answered("a")
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
    engine.now = 0.5
    engine.wants("b", 95)
    assert engine.at(0.5) == {"a"}
    assert engine.admission.next_moment() == WORTH_S
    assert engine.at(WORTH_S) == {"b"}


@pytest.mark.parametrize("what", ["ends", "asks"])
def test_nobody_waits_for_who_has_ended_or_asks_a_human(what: str) -> None:
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    if what == "ends":
        engine.end_program("a")
    else:
        engine.answered("a")
        engine.begins("a", "human")
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
    engine.now = 1.2
    engine.let_in(1)
    assert engine.inside() == {"a"}


# -- looking only after a change -------------------------------------------------------


class Eager(WorkingSet):
    """Looks at those outside whenever it is asked."""

    def let_in(self, now: float, running: int) -> list[QueuedCall]:
        self._full_at = None
        return super().let_in(now, running)


def play(admission: str, seed: int) -> tuple[list[list[str]], int]:
    """What began in each step of a random life, and how often those outside were looked at."""
    draw, looks = random.Random(seed), 0
    engine = Admitting(admission, blocks=40, slots=3, policy="adaptive")
    working: Any = engine.admission
    look = working.asked

    def counted(*state: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*state)

    working.asked = counted
    began = []
    for _ in range(300):
        for _ in range(draw.randrange(5)):
            happen(engine, draw)
        began.append(engine.step(draw.choice([0.01, 0.5])))
        check_queues(engine.queues)
    return began, looks


def happen(engine: Admitting, draw: random.Random) -> None:
    """Something happens to a program."""
    name = f"p{draw.randrange(12)}"
    event = draw.choice(["arrive", "arrive", "end", "end", "end", "tool", "human", "back", "over"])
    if event == "arrive":
        engine.arrive(name, draw.randrange(16, 200), draw.choice("ab"))
    elif event == "end" and engine.queues.calls:
        engine.end(draw.choice(sorted(engine.queues.calls)), draw.randrange(1, 60))
    elif event in ("tool", "human"):
        engine.begins(name, event)
    elif event == "back":
        engine.answered(name)
    elif event == "over" and name in engine.table:
        engine.end_program(name)


@pytest.mark.parametrize("seed", range(20))
def test_who_looks_only_after_a_change_lets_in_the_same(seed: int) -> None:
    began, looks = play("memory", seed)
    eager, more = play(f"{__name__}:Eager", seed)
    assert began == eager
    assert any(began)
    assert looks < more
