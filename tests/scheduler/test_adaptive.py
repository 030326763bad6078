"""The policy adaptive orders programs by what it has learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrt.executors.history import saved
from agentrt.scheduler import EngineProgram, ProcessTable, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.events import CallArrived
from agentrt.scheduler.policies.adaptive import Adaptive
from tests.scheduler.harness import Harness

_ENOUGH = 60
"""Ended programs that settle what a type is like."""


def taught() -> Harness:
    """A harness that has seen short programs of 1 s and long ones of 64 s."""
    harness = Harness("adaptive")
    for index in range(_ENOUGH):
        harness.live(f"s{index}", 1.0, "short")
        harness.live(f"l{index}", 64.0, "long")
    return harness


# -- decisions -------------------------------------------------------------------------


def test_programs_of_a_short_type_go_first() -> None:
    harness = taught()
    for name, type in (("a", "long"), ("b", "new"), ("c", "short"), ("d", "long")):
        harness.call(name, type=type)
    assert harness.order() == ["c", "b", "a", "d"], "one of a new type is like the mean of all"


def test_a_short_programs_call_preempts_a_long_ones_but_not_its_equals() -> None:
    harness = taught()
    harness.call("a", type="long")
    harness.call("b", type="long")
    harness.start()
    assert harness.victims() == []
    harness.call("c", type="short")
    assert [call.program.program_id for call in harness.victims()] == ["a"]


def test_a_program_that_is_nearly_done_goes_before_one_that_begins() -> None:
    """60 of its 64 s are served. Attained service does not lower its priority, as it would in
    ATLAS.
    """
    harness = taught()
    harness.call("old", type="long")
    call = harness.start()
    harness.serve(call, 60.0)
    harness.preempt(call)
    harness.call("new", type="long")
    assert harness.order() == ["old", "new"]
    atlas = Harness("atlas")
    atlas.call("old")
    call = atlas.start()
    atlas.serve(call, 60.0)
    atlas.preempt(call)
    atlas.call("new")
    assert atlas.order() == ["new", "old"]


PATHS = [0.7, 30.0, 4.0, 1.8, 0.1, 12.0]
"""Told apart by more than a level's width, which is half a doubling."""


def order_by_paths(policy: str, *past: float) -> list[float]:
    """The order of programs with the attained `PATHS`, after programs with these lengths have
    ended.
    """
    harness = Harness(policy)
    for index, seconds in enumerate(past):
        harness.live(f"past{index}", seconds, "another")
    for path_s in PATHS:
        row = harness.table.start_program(f"{path_s}", "t", harness.now)
        row.catch_up(path_s, path_s, 0.0)
        harness.call(f"{path_s}")
        harness.now += 1.0
    return [float(name) for name in harness.order()]


def test_unknown_types_run_in_order_of_arrival() -> None:
    assert order_by_paths("adaptive") == order_by_paths("program-fcfs") == PATHS


def test_unknown_programs_above_the_mean_service_go_last() -> None:
    """They run in the order of ATLAS, and the others in order of arrival."""
    assert order_by_paths("adaptive", 1.0, 3.0) == [0.7, 1.8, 0.1, 4.0, 12.0, 30.0]
    assert order_by_paths("adaptive", 0.05) == order_by_paths("atlas") == sorted(PATHS)


def test_unknown_types_are_not_preempted() -> None:
    harness = Harness("adaptive")
    served(harness, "a", 60.0)
    harness.call("b")
    assert harness.victims() == []
    assert [call.program.program_id for call in harness.running] == ["a"]


def test_an_unknown_branch_is_ranked_by_its_own_path() -> None:
    """A call on a path of 2 s, in a program whose longest path takes 64 s."""
    harness = Harness("adaptive")
    harness.live("past", 1.0, "another")
    harness.end(served(harness, "a", 64.0))
    row = harness.table.get("a")
    assert row is not None
    on_short, on_long = (QueuedCall(f"a/{s}", row, None, s, 64.0) for s in (2.0, 64.0))
    for call in (on_short, on_long):
        harness.core.handle(CallArrived(call, 64.0))
    assert on_short.level == math.floor(2 * math.log2(2.0))
    assert on_long.level == math.floor(2 * math.log2(64.0))


def test_an_unknown_program_is_expected_to_need_its_attained_service_again() -> None:
    """Its short call says nothing about how many calls follow. Other programs end sooner."""
    policy = Adaptive(SchedulerConfig("adaptive", lane=0.0))

    def level(had_s: float, type: str = "unknown") -> int:
        row = EngineProgram("p", type, attained_s=had_s, path_s=had_s)
        call = QueuedCall("c", row, None, had_s, 0.0, prompt_tokens=16, max_tokens=16)
        row.queued["c"] = call
        return policy.priority(call, 0.0).level

    nothing_ended = level(0.0)
    assert level(64.0) == nothing_ended, "while nothing is known, the visible calls alone count"
    policy.program_ended(EngineProgram("past", "another", service_s=1.0), 0.0)
    assert level(0.0) == nothing_ended
    assert level(64.0) == math.floor(2 * math.log2(64.0))
    assert level(64.0, "another") < level(64.0), "of its own type one has ended"


def served(harness: Harness, program: str, seconds: float) -> QueuedCall:
    harness.call(program)
    call = harness.start()
    harness.serve(call, seconds)
    return call


def test_within_a_level_small_programs_go_first_and_then_older_programs() -> None:
    """All are expected to need 8 s more; they differ in attained service and arrival."""
    harness = Harness("adaptive")
    harness.live("past", 8.0, "another")
    calls: dict[str, QueuedCall] = {}
    for index, (name, had) in enumerate([("late", 1.0), ("early", 1.0), ("big", 64.0)]):
        row = harness.table.start_program(name, "t", 9.0 - index)
        row.attained_s, row.path_s = had, 8.0
        calls[name] = harness.call(name)
    assert len({call.level for call in calls.values()}) == 1
    assert harness.order() == ["early", "late", "big"]
    harness.start()
    assert harness.victims() == [], "nobody is preempted for an order within a level"


def test_a_running_call_is_ranked_again_as_it_is_served() -> None:
    """Its level follows its path with a delay of an eighth of the path, or half a second."""
    harness = Harness("adaptive")
    harness.live("past", 0.05, "another")
    harness.call("a")
    call = harness.start()
    while harness.now < 100.0:
        harness.serve(call, 0.1)
        late = max(0.5, call.served_s / 8.0) + 0.2
        levels = [2.0 * math.log2(max(0.05, call.served_s - ago)) for ago in (0.0, late)]
        assert math.floor(levels[1]) <= call.level <= levels[0]


def test_when_a_call_ends_its_waiting_siblings_are_ranked_again() -> None:
    """They are ranked by the state of their program; other calls keep their rank."""
    harness = taught()
    harness.call("a", type="long")
    first = harness.start()
    other, sibling = harness.call("b", type="long"), harness.call("a")
    before = (sibling.level, other.level)
    assert before[0] == before[1]
    harness.serve(first, 60.0)
    assert (sibling.level, other.level) == before
    harness.end(first)
    assert sibling.level < before[0], "nearly done, by what is known of its kin"
    assert other.level == before[1]
    assert harness.order() == ["a", "b"]


def test_a_lost_program_teaches_nothing() -> None:
    harness = taught()
    harness.call("a", type="short")
    call = harness.start()
    harness.serve(call, 500.0)
    harness.end(call)
    learned = saved(harness.core.learned)
    assert visits(harness.core.policy)
    harness.now += harness.core.config.stale_after_s
    harness.core.drop_stale(harness.now)
    assert saved(harness.core.learned) == learned
    assert not visits(harness.core.policy)


def visits(policy: Any) -> dict[Any, Any]:
    """The ages of running programs that the policy noted."""
    assert isinstance(policy, Adaptive)
    return policy._visits


# -- expectations ----------------------------------------------------------------------


class Past:
    """Programs that are served in small pieces and ranked after each piece, as running programs
    are.
    """

    def __init__(self) -> None:
        self.policy = Adaptive(SchedulerConfig("adaptive"))
        self.table = ProcessTable(EngineProgram)
        self._started = 0

    def begin(self, type: str = "t", hint: float | None = None, **who: Any) -> EngineProgram:
        self._started += 1
        row = self.table.start_program(f"p{self._started}", type, 0.0, **who)
        row.size_hint = hint
        return row

    def serve(self, row: EngineProgram, seconds: float) -> None:
        """Run another call of a program."""
        row.attained_s += seconds
        self.table.call_ended(row, "c", 0.0, None, seconds, 0.0)

    def ask(self, row: EngineProgram, node: str = "") -> float:
        return self.policy._expected_s(row, node, row.path_s)

    def live(
        self,
        pieces: Sequence[float],
        nodes: Callable[[int], str] = lambda index: "",
        **what: Any,
    ) -> None:
        """A program that is served in ``pieces``, and ends."""
        row = self.begin(**what)
        for index, seconds in enumerate(pieces):
            self.ask(row, nodes(index))
            self.serve(row, seconds)
        self.policy.program_ended(row, 0.0)
        self.table.end_program(row.program_id)

    def expect_at(self, attained: float, **what: Any) -> float:
        """The expected remaining service of a program with this attained service."""
        row = self.begin(**what)
        if attained:
            self.serve(row, attained)
        return self.ask(row)


@pytest.fixture
def past() -> Past:
    return Past()


def test_tenants_and_types_are_learned_separately(past: Past) -> None:
    for _ in range(50):
        past.live([99.0], type="long", tenant="a")
    assert past.expect_at(0.0, type="long", tenant="a") > 50.0
    past.live([1.0])
    mean = (50 * 99.0 + 1.0) / 51
    assert past.expect_at(0.5, type="long") == past.expect_at(0.5, type="u", tenant="a")
    assert past.expect_at(0.5, type="long") == pytest.approx(mean), "that of all is all they share"


@pytest.mark.parametrize("hint", [0.0, -5.0, 1e-300, 1e300, math.inf, math.nan, "40", [1], None])
def test_an_invalid_hint_counts_as_no_hint(past: Past, hint: Any) -> None:
    """A hint that is not a positive number is ignored."""
    past.live([1.0], hint=hint)
    assert math.isfinite(past.expect_at(1.0, hint=hint))
    kinds = {what for (_, _, what), _, _ in past.policy.learned.service.entries()}
    assert any(what.startswith("hint") for what in kinds) == (hint in (1e-300, 1e300))


def test_a_call_is_ranked_by_its_path_plus_its_own_service() -> None:
    """The path to the call takes 3 s, and the call itself has had 13 s."""
    policy = Adaptive(SchedulerConfig("adaptive"))
    policy.program_ended(EngineProgram("past", "another", service_s=1.0), 0.0)
    row = EngineProgram("p", "t", started_at=7.0, attained_s=4.0)
    call = QueuedCall("c", row, None, 3.0, 0.0, served_s=13.0)
    assert policy.priority(call, 0.0) == (8, 2.0, (4, 7.0))
    row.attained_s = 64.0
    assert policy.priority(call, 0.0) == (8, 8.0, (6, 7.0))
