"""Adaptive: who goes first by what was learned, and queues that stay bounded meanwhile."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from agentrt.lab.oracles import Srpt
from agentrt.scheduler import ProgramRow, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.policies.adaptive.estimate import History
from agentrt.scheduler.policies.adaptive.policy import Adaptive
from agentrt.scheduler.policies.base import Priority
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


def test_the_kin_of_short_programs_go_first() -> None:
    harness = taught()
    for name, type in (("a", "long"), ("b", "new"), ("c", "short"), ("d", "long")):
        harness.call(name, type=type)
    assert harness.order() == ["b", "c", "a", "d"], "of a new type nothing is expected yet"


def test_a_short_programs_call_preempts_a_long_ones_but_not_its_equals() -> None:
    harness = taught()
    harness.call("a", type="long")
    harness.call("b", type="long")
    harness.start()
    assert harness.victims() == []
    harness.call("c", type="short")
    assert [call.program.program_id for call in harness.victims()] == ["a"]


def test_who_is_only_unlucky_is_not_put_off_but_who_outgrew_its_type_is() -> None:
    """Types of mean 10 s: one program in ten needs 91 s, the others 1 s."""
    harness = Harness("adaptive")
    for index in range(200):
        harness.live(f"u{index}", 91.0 if index % 10 == 0 else 1.0, "uneven")
    levels = [level_after(harness, name, had, "uneven") for name, had in (("a", 3.0), ("b", 15.0))]
    assert levels[0] == math.floor(2 * math.log2(2 * 10.0)), "88 s to come count as 20"
    assert levels[1] == levels[0]
    late = level_after(harness, "c", 200.0, "uneven")
    assert late == math.floor(2 * math.log2(200.0)), "twenty times the mean: not of its type"


def test_a_short_types_name_helps_a_long_program_only_till_twice_its_mean() -> None:
    """Past that it stands by what it has had, as it would in ATLAS."""
    harness = taught()
    assert level_after(harness, "a", 3.0, "short") == math.floor(2 * math.log2(3.0))
    assert level_after(harness, "b", 7.0, "short") == math.floor(2 * math.log2(7.0))


def level_after(harness: Harness, name: str, had: float, type: str) -> int:
    """Where a program stands that has had so many seconds."""
    harness.call(name, type=type)
    call = harness.start()
    harness.serve(call, had)
    level = call.level
    harness.end(call)
    return level


def test_a_program_that_is_nearly_done_goes_before_one_that_begins() -> None:
    """Of 64 s, 60 are served: what it had does not count against it, as it would in ATLAS."""
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


def test_without_a_past_the_order_is_that_of_atlas() -> None:
    """Paths that are told apart by more than a level's width; one level is half a doubling."""
    paths = [0.7, 30.0, 4.0, 1.8, 0.1, 12.0]
    orders = []
    for policy in ("atlas", "adaptive"):
        harness = Harness(policy)
        for index, path_s in enumerate(paths):
            row = harness.table.start_program(f"{path_s}", "t", 0.0)
            harness.table.catch_up(row, path_s, path_s, 0.0)
            harness.now = float(index)
            harness.call(f"{path_s}")
        orders.append(harness.order())
    assert orders[0] == orders[1] == [f"{path_s}" for path_s in sorted(paths)]


def test_without_a_past_a_branch_stands_by_its_own_path() -> None:
    """Not by its program's longest: a call on a path of 2 s, in a program that has one of 64 s."""
    harness = Harness("adaptive")
    harness.end(served(harness, "a", 64.0))
    row = harness.table.get("a")
    assert row is not None
    on_short, on_long = (
        harness.queues.add(f"a/{s}", row, None, s, 64.0, "", 0) for s in (2.0, 64.0)
    )
    assert on_short.level == math.floor(2 * math.log2(2.0))
    assert on_long.level == math.floor(2 * math.log2(64.0))


def served(harness: Harness, program: str, seconds: float) -> QueuedCall:
    harness.call(program)
    call = harness.start()
    harness.serve(call, seconds)
    return call


def test_within_a_level_the_small_go_first_and_then_the_older() -> None:
    """All are expected to need 8 s more; they differ by what they had, and when they came."""
    harness = Harness("adaptive")
    calls: dict[str, QueuedCall] = {}
    for index, (name, had) in enumerate([("big", 64.0), ("late", 1.0), ("early", 1.0)]):
        row = harness.table.start_program(name, "t", 9.0 - index)
        row.attained_s, row.path_s = had, 8.0
        calls[name] = harness.call(name)
    assert len({call.level for call in calls.values()}) == 1
    assert harness.order() == ["early", "late", "big"]
    harness.start()
    assert harness.victims() == [], "nobody is preempted for an order within a level"


class Asked(History):
    """Expects 16 s of everybody, and remembers for what it was asked."""

    def expect(self, row: ProgramRow, node: str, path_s: float) -> float:
        self.last = (node, path_s)
        return 16.0


def test_level_quantum_and_order_follow_from_what_is_expected_and_what_it_had() -> None:
    policy = Adaptive(SchedulerConfig())
    policy.history = asked = Asked()
    row = ProgramRow("p", "t", started_at=7.0, attained_s=4.0)
    call = QueuedCall("c", row, None, 3.0, 0.0, node="plan", served_s=0.5)
    assert policy.priority(call, 0.0) == Priority(8, 2.0, order=3 * 2.0**32 + 7.0)
    assert asked.last == ("plan", 3.5)
    row.attained_s = 64.0
    assert policy.priority(call, 0.0) == Priority(8, 8.0, order=5 * 2.0**32 + 7.0)
    row.attained_s = 0.0
    assert policy.priority(call, 0.0) == Priority(8, 2.0, order=1 * 2.0**32 + 7.0)


def test_a_running_call_is_looked_at_again_as_it_is_served() -> None:
    """Its level follows its path, a little late: by an eighth of it, or half a second."""
    harness = Harness("adaptive")
    harness.call("a")
    call = harness.start()
    while harness.now < 100.0:
        harness.serve(call, 0.1)
        late = max(0.5, call.served_s / 8.0) + 0.2
        levels = [2.0 * math.log2(max(0.05, call.served_s - ago)) for ago in (0.0, late)]
        assert math.floor(levels[1]) <= call.level <= levels[0]


def test_when_a_call_ends_its_waiting_siblings_stand_anew() -> None:
    """They are placed by what is known of their program by then, and others are not."""
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
    history = harness.queues.policy.history
    assert history is not None
    learned = history.to_dict()
    harness.queues.program_lost(call.program)
    assert history.to_dict() == learned
    assert not history._asked


# -- bounds ----------------------------------------------------------------------------


class Chance:
    """Events in an order that nobody would think of; crowds come and go."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self.harness = harness
        self._rng = random.Random(seed)
        self._events: list[tuple[Callable[[], None], int]] = [
            (self._arrive, 6),
            (self._start, 4),
            (self._serve, 8),
            (self._preempt, 3),
            (self._end, 3),
            (self._abort, 1),
            (self._promote, 4),
        ]

    def happen(self, crowd: bool) -> None:
        """One event; while no ``crowd`` gathers, waiting calls are aborted in numbers."""
        what, weights = zip(*self._events, strict=True)
        event = self._rng.choices(what, weights)[0]
        if event == self._arrive and not crowd:
            event = self._abort
        self.harness.now += 0.01
        event()

    def _arrive(self) -> None:
        self.harness.call(f"p{self._rng.randrange(300)}", self._rng.randrange(1000))

    def _start(self) -> None:
        if len(self.harness.running) < 8 and self.harness.queues.head() is not None:
            self.harness.start()

    def _serve(self) -> None:
        if self.harness.running:
            self.harness.serve(self._rng.choice(self.harness.running), self._rng.random())

    def _preempt(self) -> None:
        if self.harness.running:
            self.harness.preempt(
                self._rng.choice(self.harness.running), hold=self._rng.random() < 0.3
            )

    def _end(self) -> None:
        if self.harness.running:
            call = self._rng.choice(self.harness.running)
            self.harness.end(call, program=len(call.program.calls) == 1)

    def _abort(self) -> None:
        calls = self.harness.queues.calls
        if calls:
            call = calls[self._rng.choice(list(calls))]
            self.harness.end(call, program=len(call.program.calls) == 1)

    def _promote(self) -> None:
        self.harness.queues.release(lambda call: self._rng.random() < 0.7)
        self.harness.queues.promote(self.harness.now)


def srpt() -> Policy:
    """The clairvoyant, with a future made up of names."""
    return Srpt(SchedulerConfig(), lambda row: 1.0 + int(row.program_id[1:]))


@pytest.mark.parametrize("policy", ["two-level", "atlas", "adaptive", "srpt"])
def test_heaps_stay_bounded_by_what_waits(policy: str) -> None:
    """Entries that are out of date never outweigh the waiting calls by more than a little."""
    given = srpt() if policy == "srpt" else None
    harness = Harness("atlas" if given else policy, slots=8, given=given, beta=0.5, lane=0.25)
    chance = Chance(harness, seed=1)
    most = 0
    for index in range(20_000):
        chance.happen(crowd=index % 4000 < 2000)
        queues, waiting = harness.queues, len(harness.queues)
        assert len(queues._heap) <= 2 * waiting + 65
        assert len(queues._lane._line) <= 2 * waiting + 65
        most = max(most, waiting)
        if index % 500 == 0:
            harness.check_integrity()
    assert most > 100
