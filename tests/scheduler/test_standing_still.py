"""When the engine idles for a member, and when no waiting program needs to be examined."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentrt.scheduler import QueuedCall
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.learned.costs import StepCost
from tests.scheduler.admitting import BLOCK, KIND, TOKEN_S, Admitting, Counted
from tests.scheduler.integrity import check_queues

# -- where nothing runs ----------------------------------------------------------------

PROMPT_S = 9 * BLOCK * TOKEN_S
"""What b's prompt of nine blocks takes to compute."""


class Standing(Counted):
    """Program a is in a tool with 94 of 100 blocks, and nothing runs. There is no room for ten more
    blocks.

    The tool usually takes ``tool_s`` seconds.
    """

    def __init__(self, tool_s: float = PROMPT_S / 2, **more: object) -> None:
        super().__init__(slots=2, **more)
        for name in ("", "grep"):
            for _ in range(400):
                self.learned.gaps.learn((*KIND, name), tool_s)
        call = self.wants("a", 95)
        self.step(0.0)
        self.end(call, output=0)
        self.begins("a")
        self.let_in(0)

    def at(self, moment: float) -> set[str]:
        """The members at a moment at which nothing runs."""
        self.now = moment
        self.let_in(0)
        return self.inside()


def test_a_newcomer_waits_for_a_tool_no_longer_than_its_own_prompt_takes_to_compute() -> None:
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    assert engine.admission.next_moment() <= PROMPT_S
    assert engine.at(PROMPT_S) == {"a", "b"}


def test_no_program_waits_for_a_tool_that_is_expected_to_take_longer() -> None:
    engine = Standing(tool_s=2 * PROMPT_S)
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a", "b"}


def test_no_program_waits_for_a_tool_because_the_first_step_took_a_minute() -> None:
    engine = Standing()
    engine.learned.costs = StepCost()
    engine.learned.costs.step(60.0, 9 * BLOCK + 1, 1)
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a", "b"}


def test_a_program_waits_once() -> None:
    """The engine had other work meanwhile; when it is idle again, b is admitted."""
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    engine.answered("a")
    again = engine.arrive("a", 0)
    engine.step(0.0)
    assert engine.inside() == {"a"}
    engine.now = 1.0
    engine.end(again, output=0)
    engine.begins("a")
    assert engine.at(1.0) == {"a", "b"}


@pytest.mark.parametrize("what", ["ends", "asks", "is silent"])
def test_no_program_waits_for_a_program_that_ended_asks_a_human_or_is_silent(what: str) -> None:
    engine = Standing()
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    if what == "ends":
        engine.end_program("a")
    else:
        engine.answered("a")
    if what == "asks":
        engine.begins("a", "human")
    assert "b" in engine.at(0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_waiting_program_keeps_an_idle_engine_waiting_no_longer_than_its_prompt_takes(
    seed: int,
) -> None:
    """Random programs, tools, humans and silence: the bound of docs/scheduler.md."""
    draw = random.Random(seed)
    engine = Admitting("memory", blocks=40, slots=3, policy="adaptive")
    engine.learned.costs.step(0.0, 1, 1)
    engine.learned.costs.step(1024 * TOKEN_S, 1025, 1)
    idle: dict[str, float] = {}
    for _ in range(600):
        for _ in range(draw.randrange(4)):
            happen(engine, draw)
        waiting = set(engine.outside())
        before = engine.now
        began = engine.step(draw.choice([0.001, 0.01, 0.05]))
        if not engine.running and not began:
            for call_id in waiting & engine.outside():
                idle[call_id] = idle.get(call_id, 0.0) + engine.now - before
    for call_id, seconds in idle.items():
        assert seconds <= 200 * TOKEN_S + 0.05, call_id


def test_no_program_waits_longer_than_the_target() -> None:
    engine = Standing(ttft_target=0.1)
    engine.wants("b", 10)
    assert engine.at(0.0) == {"a"}
    assert engine.admission.next_moment() == 0.1
    assert engine.at(0.1) == {"a", "b"}


def test_a_running_program_is_no_reason_for_an_admission() -> None:
    engine = Standing()
    engine.wants("b", 10)
    engine.now = 1.2
    engine.let_in(1)
    assert engine.inside() == {"a"}


# -- looking only after a change -------------------------------------------------------


class Eager(WorkingSet):
    """A working set that examines waiting programs at every call."""

    def admit(self, now: float, running: int) -> list[QueuedCall]:
        self._full_at = None
        return super().admit(now, running)


def play(admission: str, seed: int) -> tuple[list[list[str]], int]:
    """The calls that began in each step of random events, and how often waiting programs were
    examined.
    """
    draw, looks = random.Random(seed), 0
    engine = Admitting(admission, blocks=40, slots=3, policy="adaptive")
    working: Any = engine.admission
    look = working.candidates

    def counted(*state: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*state)

    working.candidates = counted
    began = []
    for _ in range(300):
        for _ in range(draw.randrange(5)):
            happen(engine, draw)
        began.append(engine.step(draw.choice([0.01, 0.5])))
        check_queues(engine.core)
    return began, looks


def happen(engine: Admitting, draw: random.Random) -> None:
    """Something happens to a program."""
    name = f"p{draw.randrange(12)}"
    event = draw.choice(["arrive", "arrive", "end", "end", "end", "tool", "human", "back", "over"])
    if event == "arrive":
        engine.arrive(name, draw.randrange(16, 200), draw.choice("ab"))
    elif event == "end" and engine.core.calls:
        engine.end(draw.choice(sorted(engine.core.calls)), draw.randrange(1, 60))
    elif event in ("tool", "human"):
        engine.begins(name, event)
    elif event == "back":
        engine.answered(name)
    elif event == "over" and name in engine.table:
        engine.end_program(name)


@pytest.mark.parametrize("seed", range(20))
def test_looking_only_after_a_change_admits_the_same_programs(seed: int) -> None:
    began, looks = play("memory", seed)
    eager, more = play(f"{__name__}:Eager", seed)
    assert began == eager
    assert any(began)
    assert looks < more
