"""Members of the working set: which members continue, and which leave."""

from __future__ import annotations

import math

import pytest

from agentrt.scheduler import EngineProgram, ProcessTable
from agentrt.scheduler.admission.memory import OLDEST_EVERY
from agentrt.scheduler.events import CallPreempted, CallStarted, PreemptionReason
from agentrt.scheduler.learned import program_types
from tests.scheduler.admitting import BLOCK, KIND, WORTH_S, Counted, full, held
from tests.scheduler.integrity import check_queues

# -- calls and programs that go --------------------------------------------------------


def test_a_member_and_its_children_continue() -> None:
    engine = Counted()
    a, b = engine.wants("a", 40), engine.wants("b", 40)
    engine.wants("c", 40)
    engine.step()
    child = engine.arrive("a", 16)
    assert engine.step() == [child]
    engine.end(a, 0)
    engine.end(child, 0)
    again = engine.arrive("a", 16)
    assert engine.step() == [again]
    assert b in [call.call_id for call in engine.running]


def test_an_aborted_call_leaves_its_programs_other_calls_unadmitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = full()
    monkeypatch.setattr(program_types, "BRANCHING", 1.0)  # none does
    gone, *stay = (engine.wants("b", blocks) for blocks in (60, 2, 2))
    assert engine.step() == []
    assert (engine.outside(), len(engine.core.queue)) == ({"large/1", gone, *stay}, 4)
    engine.end(gone)
    assert engine.outside() == {"large/1", *stay}
    assert engine.step() == stay, "they fit without it"
    engine.end("large/1")
    engine.end_program("large")
    assert (len(engine.admission._not_admitted), len(engine.core.queue)) == (0, 0)
    assert engine.step() == []
    check_queues(engine.core)


def test_a_running_call_makes_its_program_a_member() -> None:
    """vLLM has queues of its own, which no call is kept out of."""
    engine = full()
    call = engine.core.calls["large/1"]
    engine.core.queue.discard(call)
    engine.core.handle(CallStarted(call, engine.now))
    assert engine.inside() == {"a", "large"}


@pytest.mark.parametrize(
    ("calls", "beside", "for_memory", "stays"),
    [(1, True, True, False), (2, True, True, True), (1, False, True, True), (1, True, False, True)],
)
def test_a_program_preempted_for_memory_leaves_unless_it_has_other_calls_or_is_alone(
    calls: int, beside: bool, for_memory: bool, stays: bool
) -> None:
    engine = Counted()
    mine = [engine.wants("a", 5) for _ in range(calls)]
    if beside:
        engine.wants("b", 5)
    engine.step()
    call = engine.core.calls[mine[0]]
    reason = PreemptionReason.MEMORY if for_memory else PreemptionReason.SLOT
    engine.core.handle(CallPreempted(call, engine.now, reason))
    assert ("a" in engine.inside()) is stays


# -- who gives way ---------------------------------------------------------------------


class Turns(Counted):
    """Two members of 41 blocks; a third program has no room. Levels begin at 1 second.

    A context takes 0.625 seconds to compute, so a turn is 5 seconds for each member served in
    parallel.
    """

    def __init__(self, quantum_s: float = 1.0, slots: int = 2) -> None:
        super().__init__(slots=slots, policy="plas", quanta=(quantum_s, 1000.0), beta=math.inf)

    def begin(self) -> None:
        self.a = self.wants("a", 41)
        self.wants("c", 41)
        self.step(0.0)

    def back(self, served_s: float) -> bool:
        """Serve program a for this time, let it return, and return whether it continues."""
        self.step(served_s)
        self.end(self.a, output=0)
        self.a = self.arrive("a", 0)
        return "a" in self.inside()


@pytest.mark.parametrize(
    ("slots", "served_s", "stays"),
    [(2, 9.75, True), (2, 10.0, False), (1, 4.75, True), (1, 5.0, False)],
)
def test_a_member_leaves_for_a_better_level_after_its_turn(
    slots: int, served_s: float, stays: bool
) -> None:
    engine = Turns(slots=slots)
    engine.begin()
    engine.wants("b", 41)
    assert engine.back(served_s) is stays


def test_a_members_next_turn_begins_at_its_next_admission() -> None:
    engine = Turns()
    engine.begin()
    other = engine.wants("b", 41)
    assert not engine.back(10.0)
    engine.step(0.0)
    assert engine.inside() == {"b", "c"}
    engine.end(other, output=0)
    engine.end_program("b")
    engine.step(0.0)
    engine.wants("d", 41)
    assert engine.back(9.75)
    assert not engine.back(0.25)


def test_a_program_with_another_call_continues_in_a_full_cache() -> None:
    engine = Counted()
    calls = [engine.wants(name, 41) for name in "ab"]
    engine.step()
    engine.arrive("a", 30 * BLOCK)
    assert engine.working.claimed > 100
    engine.end(calls[1], output=0)
    engine.wants("b", 30)
    assert engine.inside() == {"a"}
    another = engine.arrive("a", BLOCK)
    assert another not in engine.outside()


def test_a_returned_program_is_not_absent() -> None:
    engine = Counted()
    call = engine.wants("a", 31)
    engine.step()
    engine.end(call, output=0)
    engine.arrive("a", BLOCK)
    engine.step()
    engine.wants("b", 80, "u")
    engine.now += 2 * WORTH_S
    engine.let_in()
    assert engine.inside() == {"a"}


def test_a_program_with_another_call_is_not_absent() -> None:
    engine = Counted()
    calls = [engine.wants("a", 31) for _ in range(2)]
    engine.step()
    engine.end(calls[0], output=0)
    engine.wants("b", 80, "u")
    engine.now += 2 * WORTH_S
    engine.let_in()
    assert engine.inside() == {"a"}


@pytest.mark.parametrize(
    ("away", "adds", "goes_on"), [(True, 30, True), (False, 30, False), (False, 7, True)]
)
def test_a_returning_program_continues_if_the_programs_with_calls_fit(
    away: bool, adds: int, goes_on: bool
) -> None:
    engine = Counted()
    calls = {name: engine.wants(name, 31) for name in "abc"}
    engine.step()
    engine.end(calls["a"], output=0)
    if away:
        engine.end(calls["c"], output=0)
        engine.begins("c")
    engine.arrive("a", adds * BLOCK)
    assert ("a" in engine.inside()) is goes_on


@pytest.mark.parametrize(
    ("away_s", "evicted", "leaves"), [(0.0, 20, "a/6"), (0.0, 0, None), (WORTH_S, 20, None)]
)
def test_a_program_leaves_after_as_much_was_recomputed_as_its_context(
    away_s: float, evicted: int, leaves: str | None
) -> None:
    """Three programs make calls in turns, and their contexts exceed the cache together. In each
    call, ``evicted`` blocks have to be recomputed. With ``away_s``, no context is held.
    """
    engine = Counted()
    calls = {name: engine.wants(name, 30) for name in "abc"}
    engine.step()
    for call in calls.values():
        engine.end(call, output=0)
    out = None
    for name, adds in zip("abcab", (11, 11, 1, 1, 1), strict=True):
        engine.now += away_s
        engine.let_in()
        call = engine.arrive(name, adds * BLOCK)
        if name not in engine.inside():
            out = call
            break
        engine.contexts[name] -= evicted * BLOCK
        engine.step(0.0)
        engine.end(call, output=0)
    assert out == leaves
    if out is not None:  # the others fit without it
        for name in "bc":
            engine.arrive(name, BLOCK)
            assert name in engine.inside()


@pytest.mark.parametrize(("away_s", "stays"), [(0.0, False), (WORTH_S, True)])
def test_contexts_that_are_held_no_longer_count_on_an_idle_engine(
    away_s: float, stays: bool
) -> None:
    """As much as the context of program c was recomputed. Then no program has a call, so that the
    engine takes no steps.
    """
    engine = Counted()
    for call in [engine.wants(name, 30) for name in "abc"]:
        engine.step(0.1)
        engine.end(call, output=0)
    for name, adds, lost in (("a", 11, 0), ("b", 11, 25), ("a", 1, 15)):
        call = engine.arrive(name, adds * BLOCK)
        engine.contexts[name] -= lost * BLOCK
        engine.step(0.0)
        engine.end(call, output=0)
    engine.now += away_s
    engine.arrive("c", BLOCK)
    assert ("c" in engine.inside()) is stays


@pytest.mark.parametrize(("recomputed", "stays"), [(0, True), (7, True), (8, False)])
def test_the_context_of_a_preempted_first_call_counts(recomputed: int, stays: bool) -> None:
    """Program a has no other context than the 8 blocks of its call."""
    engine = Counted()
    for earlier in [engine.wants(name, 40) for name in "bc"]:
        engine.step(0.1)
        engine.end(earlier, output=0)
    call_id = engine.wants("a", 9)
    engine.step(0.1)
    for lost in (0, recomputed):
        again = engine.arrive("b", 15 * BLOCK)
        engine.contexts["b"] -= lost * BLOCK
        engine.step(0.0)
        engine.end(again, output=0)
    call = engine.core.calls[call_id]
    engine.running.remove(call)
    call.computed_tokens = 8 * BLOCK
    engine.core.handle(CallPreempted(call, engine.now, PreemptionReason.SLOT))
    engine.core.queue.put(call)
    assert ("a" in engine.inside()) is stays


@pytest.mark.parametrize(("adds", "goes_on"), [(28, True), (33, False)])
def test_a_shared_prefix_counts_for_programs_with_calls(adds: int, goes_on: bool) -> None:
    engine = Counted()
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    calls = {name: engine.wants(name, 40) for name in "ab"}
    engine.step()
    engine.end(calls["a"], output=0)
    engine.arrive("a", adds * BLOCK)
    assert ("a" in engine.inside()) is goes_on


def test_the_only_member_continues_in_a_full_cache() -> None:
    engine = Counted()
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    call = engine.wants("a", 120)
    engine.step()
    assert engine.working.claimed - held(engine.working) > 100
    engine.end(call, output=0)
    engine.arrive("a", BLOCK)
    assert engine.inside() == {"a"}


def test_no_member_leaves_for_a_fitting_program_or_for_its_own_level() -> None:
    alone, beside, equal = Turns(), Turns(), Turns(100.0)
    for engine in (alone, beside, equal):
        engine.begin()
    assert alone.back(20.0)
    beside.step(20.0)
    beside.wants("b", 5)
    assert beside.back(0.0)
    equal.wants("b", 41)
    assert equal.back(20.0)


def test_age_counts_for_a_program_admitted_by_age_and_for_the_next_one() -> None:
    old, equal = Turns(), Turns(100.0)
    old.working.admissions = OLDEST_EVERY - 1
    for engine in (old, equal):
        engine.begin()
        engine.wants("b", 41)
    assert old.back(20.0)
    equal.working.admissions = OLDEST_EVERY - 1
    assert not equal.back(20.0)


def test_a_leaving_member_is_compared_with_the_first_in_order_or_the_oldest() -> None:
    engine = Turns()
    engine.begin()
    engine.table.start_program("b", "t", 0.0).service_s = 2000.0
    engine.wants("b", 41)
    engine.wants("d", 41)
    assert not engine.back(20.0), "d is of a better level"


def test_the_oldest_stays_the_oldest_when_its_priority_changes() -> None:
    engine = full(policy="srtf")
    engine.now += 1.0
    engine.wants("small", 59)
    first = engine.working.first()
    assert first is not None
    assert first.program.program_id == "small"
    engine.admission.wait(engine.core.calls["large/1"])
    engine.working.admissions = OLDEST_EVERY - 1
    first = engine.working.first()
    assert first is not None
    assert first.call_id == "large/1"


def test_a_restarted_row_is_like_a_new_row() -> None:
    engine = Counted()
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    call = engine.wants("a", 31)
    engine.working.admissions = OLDEST_EVERY - 1
    engine.step()
    engine.end(call, output=16)
    row = engine.table.get("a")
    assert row is not None
    row.was_resident = True
    row.start_over()
    new = ProcessTable(EngineProgram).start_program("a", "t", 0.0)
    for name in ("cached", "context_tokens", "shared_tokens", "claim"):
        assert getattr(row, name) == getattr(new, name), name
    assert (row.resident, row.was_resident, row.admitted_by_age) == (False, False, False)


def test_an_admission_by_age_lasts_for_one_stay() -> None:
    engine = Turns()
    engine.working.admissions = OLDEST_EVERY - 1
    engine.begin()
    engine.end(engine.a, output=0)
    engine.begins("a", "human")
    brief = engine.wants("d", 41)
    engine.step(0.0)
    engine.end(brief, output=0)
    engine.end_program("d")
    engine.answered("a", "human")
    engine.a = engine.arrive("a", 0)
    engine.step(0.0)
    engine.wants("b", 41)
    assert not engine.back(20.0)


def test_the_only_member_leaves_after_its_turn() -> None:
    """Otherwise a program that does not fit beside it would wait until the member ends."""
    engine = Turns(slots=1)
    engine.a = engine.wants("a", 60)
    engine.step(0.0)
    engine.wants("b", 60)
    assert engine.back(7.0)
    assert not engine.back(0.5)
    engine.step(0.0)
    assert engine.inside() == {"b"}
