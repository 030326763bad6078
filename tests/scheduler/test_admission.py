"""Which programs may use the cache now: by name, by a cap, and by memory, counted by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import QueuedCall, SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.memory import OLDEST_EVERY, Cap, Capacity, WorkingSet, make_admission
from agentrt.scheduler.retention import SCANNED, CachedBlocks
from tests.scheduler.admitting import BLOCK, KIND, TOKEN_S, Admitting, Counted

WORTH_S = 100 * BLOCK * TOKEN_S
"""What the whole cache takes to compute anew."""


# -- by name, and by a cap -------------------------------------------------------------


def made(**settings: Any) -> Any:
    return make_admission(SchedulerConfig(**settings), Capacity(100, 16, 8), Learned())


def test_admissions_go_by_name() -> None:
    assert made() is None
    assert type(made(admission="cap")) is Cap
    assert type(made(admission="memory")) is WorkingSet
    assert type(made(admission="agentrt.scheduler.memory:WorkingSet")) is WorkingSet


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"admission": "all"},
            "unknown admission 'all'; known: off, cap, memory, or package.module:Class",
        ),
        ({"admission": "no.such:Thing"}, "'no.such:Thing' does not load"),
        ({"admission": "agentrt.scheduler.call:QueuedCall"}, "is no subclass of Admission"),
        ({"admission_cap": 0}, "admission_cap must be at least 1"),
        ({"ttft_target": 0.0}, "ttft_target must be positive seconds"),
        ({"ttft_target": math.inf}, "ttft_target must be positive seconds"),
    ],
)
def test_what_is_no_admission_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        made(**settings)


def test_a_cap_lets_in_so_many_programs_in_the_order_of_their_arrival() -> None:
    engine = Admitting("cap", admission_cap=2)
    a, b, c, d = (engine.arrive(name, 16) for name in "abcd")
    assert engine.step() == [a, b]
    engine.end(a)
    again = engine.arrive("a", 16)
    assert engine.step() == [again], "a program keeps its slot between its calls"
    engine.end(again)
    engine.end_program("a")
    assert engine.step() == [c]
    for call, name in ((b, "b"), (c, "c")):
        engine.end(call)
        engine.end_program(name)
    assert engine.step() == [d]


def test_the_lane_promotes_nobody_outside() -> None:
    engine = Admitting("cap", admission_cap=1, policy="adaptive", lane=0.5)
    for name in "abc":
        engine.arrive(name, 16)
    engine.let_in()
    assert [call.call_id for call in engine.queues.promote(100.0)] == ["a/0"]


# -- what is claimed -------------------------------------------------------------------


def test_programs_come_in_while_their_contexts_fit() -> None:
    engine = Counted()
    a, b = engine.wants("a", 60), engine.wants("b", 40)
    assert engine.step() == [a, b]
    assert engine.working.claimed == engine.working.in_use == 100
    c = engine.wants("c", 1)
    assert engine.step() == []
    engine.end(b)
    engine.end_program("b")
    assert engine.step() == [c]


def test_a_call_claims_half_of_the_output_that_is_expected_of_its_type() -> None:
    engine = Counted()
    for _ in range(2048):
        engine.learned.call_ended(KIND, 6 * BLOCK)
    engine.wants("a", 10)
    engine.step()
    assert engine.working.claimed == 9 + 3 + 1


def test_what_a_call_finds_cached_is_not_added() -> None:
    engine = Counted()
    engine.contexts["a"] = 4 * BLOCK
    engine.arrive("a", 9 * BLOCK, fresh=True)
    engine.let_in()
    assert engine.working.claimed == 9 + 1
    engine.contexts["b"] = 20 * BLOCK
    engine.arrive("b", 10 * BLOCK, fresh=True)
    engine.step()
    assert engine.working.claimed == (4 + 5 + 1) + (20 + 0 + 1), "it comes back for all"


def test_branches_are_counted_each_and_what_they_share_once() -> None:
    engine = Counted()
    claims = []
    for tokens, beside in ((10, 0), (20, 0), (16, 15)):
        engine.arrive("a", tokens * BLOCK, beside=beside * BLOCK)
        engine.step()
        claims.append(engine.working.claimed)
    # A block more for the rest of each call; 15 of the third one's are the second one's, too.
    assert claims == [10 + 1, 30 + 2, 31 + 3]


def test_a_chain_is_counted_with_what_it_comes_back_for() -> None:
    engine = Counted()
    call = engine.arrive("a", 10 * BLOCK)
    engine.step()
    engine.end(call, output=0)
    assert (engine.working.claimed, engine.working.in_use) == (10, 0)
    engine.arrive("a", 2 * BLOCK)
    assert engine.working.claimed == engine.working.in_use == 12 + 1
    engine.arrive("a", 4 * BLOCK, fresh=True)
    assert engine.working.claimed == 12 + 4 + 2


def test_with_nothing_running_the_first_comes_in_whatever_it_needs() -> None:
    engine = Counted()
    large = engine.wants("a", 1000)
    assert engine.step() == [large]
    assert engine.working.claimed == 100
    engine.end(large)
    engine.end_program("a")
    assert engine.working.claimed == engine.working.members == 0


def test_a_shared_prefix_is_claimed_by_the_first_and_given_back_by_the_last() -> None:
    engine = Counted(slots=4)
    engine.learned.first_call(KIND, 10 * BLOCK)
    calls = {name: engine.wants(name, 31) for name in "abcd"}
    engine.step()
    claimed = [engine.working.claimed]
    for name, call in calls.items():
        engine.end(call, output=0)
        engine.end_program(name)
        claimed.append(engine.working.claimed)
    # 21 each, and 10 for the prefix.
    assert claimed == [94, 73, 52, 31, 0]
    assert engine.working.in_use == 0


@pytest.mark.parametrize(("there", "fits"), [(69, True), (70, False)])
def test_a_program_that_would_bring_its_types_prefix_needs_room_for_it(
    there: int, fits: bool
) -> None:
    engine = Counted(slots=1)
    engine.learned.first_call(KIND, 10 * BLOCK)
    engine.wants("u", there, "u")
    engine.step()
    engine.wants("a", 31)
    engine.let_in()
    assert ("a" in engine.inside()) is fits


@pytest.mark.parametrize(("blocks", "fits"), [(58, True), (59, False)])
def test_whose_prefix_is_there_needs_no_room_for_it(blocks: int, fits: bool) -> None:
    engine = Counted()
    engine.learned.first_call(KIND, 10 * BLOCK)
    for name, size in (("a", 31), ("b", 31), ("c", blocks)):
        engine.wants(name, size)
    engine.let_in(2)
    assert ("c" in engine.inside()) is fits
    assert engine.working.claimed == 10 + 21 + 21 + (48 if fits else 0)


def test_a_prefix_is_learned_from_first_calls_alone() -> None:
    engine = Counted()
    first = engine.wants("a", 9)
    engine.step()
    engine.end(first, output=0)
    engine.wants("a", 9)
    engine.contexts["b"] = 64  # two calls at once: which was the first?
    engine.wants("b", 2)
    engine.wants("b", 2)
    engine.step()
    assert engine.learned.shared(KIND) == 0
    engine.contexts["c"] = 64
    engine.arrive("c", 80, fresh=True)
    engine.step()
    assert engine.learned.shared(KIND) == 64


# -- who is looked at ------------------------------------------------------------------


def full(**more: Any) -> Counted:
    """60 of 100 blocks are claimed, and the next in the order wants 60."""
    engine = Counted(**more)
    engine.wants("a", 60)
    engine.step()
    engine.wants("large", 60)
    return engine


def test_one_that_has_no_room_does_not_hold_up_one_that_has_and_keeps_its_turn() -> None:
    engine = full()
    engine.wants("b", 30)
    engine.wants("c", 5)
    engine.let_in()
    assert engine.inside() == {"a", "b", "c"}
    for name in "abc":
        engine.end_program(name)
    engine.wants("d", 60)
    engine.let_in()
    assert engine.inside() == {"large"}


@pytest.mark.parametrize(("before", "comes_in"), [(SCANNED - 1, True), (SCANNED, False)])
def test_so_many_are_looked_at_and_no_more(before: int, comes_in: bool) -> None:
    engine = full()
    for n in range(before - 1):
        engine.wants(f"large{n}", 60)
    engine.wants("b", 30)
    engine.let_in()
    assert ("b" in engine.inside()) is comes_in


@pytest.mark.parametrize(("running", "comes_in"), [(7, True), (8, False)])
def test_nobody_is_passed_where_no_slot_is_free(running: int, comes_in: bool) -> None:
    engine = full()
    engine.wants("b", 30)
    engine.let_in(running)
    assert ("b" in engine.inside()) is comes_in


def test_nobody_passes_the_oldest_when_it_is_next_for_its_age() -> None:
    engine = full()
    engine.wants("b", 30)
    engine.working.came_in = OLDEST_EVERY - 1
    engine.let_in()
    assert engine.inside() == {"a"}


def test_a_large_program_is_passed_by_so_many_others_at_most() -> None:
    """Small ones keep coming, and the policy prefers the small."""
    engine = Counted(policy="srtf", slots=4)
    for n in range(4):
        engine.wants(f"s{n}", 25)
    large, passed = engine.wants("large", 80), 0
    for n in range(4, 200):
        began = engine.step()
        if large in began:
            break
        passed += len(began)
        engine.wants(f"s{n}", 25)
        oldest = engine.running[0].call_id
        engine.end(oldest, 0)
        engine.end_program(oldest.partition("/")[0])
    else:
        pytest.fail("the large one never came in")
    assert OLDEST_EVERY - 4 <= passed < OLDEST_EVERY


def test_whoever_waits_for_the_target_comes_in() -> None:
    """It counts from a call's own arrival."""
    engine = Counted(ttft_target=10.0)
    engine.wants("a", 60)
    engine.step(5.0)
    engine.wants("b", 60)
    engine.now = 14.9
    engine.let_in()
    assert engine.inside() == {"a"}
    assert engine.admission.next_moment() == 15.0
    engine.now = 15.0
    engine.let_in()
    assert engine.inside() == {"a", "b"}


# -- who comes in without room ---------------------------------------------------------


def branching(engine: Counted, *, branches: bool = True) -> None:
    """Programs of type u have branches, or not."""
    for _ in range(4):
        engine.learned.call_arrived(("default", "u"), beside=branches)


@pytest.mark.parametrize(
    ("branches", "running", "comes_in"), [(True, 3, True), (True, 4, False), (False, 3, False)]
)
def test_branches_without_room_come_in_while_little_of_the_batch_is_taken(
    branches: bool, running: int, comes_in: bool
) -> None:
    engine = Counted(slots=8)
    engine.wants("a", 60)
    engine.step()
    branching(engine, branches=branches)
    engine.arrive("b", 58 * BLOCK, "u")
    engine.let_in(running)
    assert ("b" in engine.inside()) is comes_in


# -- who waits for something else than a call ------------------------------------------


def learn(engine: Admitting, seconds: float, *, well: bool = True) -> None:
    """What a tool takes, and whether its programs come back at all."""
    for name in ("", "grep"):
        for _ in range(400):
            engine.learned.gaps.learn((*KIND, name), seconds, well=well)


@pytest.mark.parametrize(
    ("seconds", "well", "kept_s"),
    [
        (None, True, WORTH_S),
        (WORTH_S, True, WORTH_S),
        (2 * WORTH_S, True, 0.0),
        (1e-3, False, 0.0),
    ],
)
def test_a_tools_program_is_held_for_what_its_blocks_are_worth(
    seconds: float | None, well: bool, kept_s: float
) -> None:
    """As long as the whole cache takes to compute, and not at all if it is expected later."""
    engine = Counted()
    call = engine.wants("a", 60)
    engine.step(0.0)
    if seconds is not None:
        learn(engine, seconds, well=well)
    engine.now = 100.0
    engine.end(call, output=0)
    engine.begins("a")
    engine.wants("b", 60)
    if kept_s:
        engine.now += kept_s - 1e-3
        engine.let_in()
        assert engine.inside() == {"a"}
        engine.now = 100.0 + kept_s
    engine.let_in()
    assert engine.inside() == {"b"}


def test_who_asks_a_human_is_held_until_somebody_wants_in() -> None:
    engine = Counted()
    call = engine.wants("a", 60)
    engine.step()
    engine.end(call, output=0)
    engine.begins("a", "human")
    engine.let_in()
    assert engine.inside() == {"a"}
    engine.wants("b", 60)
    engine.let_in()
    assert engine.inside() == {"b"}


def test_an_earlier_tool_does_not_count_once_the_program_was_back() -> None:
    engine = Counted()
    for at in (0.0, WORTH_S / 2):
        engine.now = at
        call = engine.wants("a", 60)
        engine.contexts.clear()
        engine.step(0.0)
        engine.end(call, output=0)
        if not at:
            engine.begins("a")
    engine.wants("b", 60)
    engine.now = WORTH_S
    engine.let_in()
    assert engine.inside() == {"a"}
    engine.now = 1.5 * WORTH_S
    engine.let_in()
    assert engine.inside() == {"b"}


def test_who_comes_back_goes_before_new_ones_of_its_level_and_its_blocks_move() -> None:
    engine, changed = Counted(), list[CachedBlocks]()
    call = engine.wants("a", 60)
    engine.step()
    engine.end(call, output=0)
    engine.begins("a", "human")
    engine.queues.owners.changed = changed.append
    other = engine.wants("b", 60)
    engine.step()
    row = engine.table.get("a")
    assert row is not None
    assert (row.member, row.returned) == (False, True)
    assert row.cached in changed
    engine.wants("c", 60)
    engine.contexts.clear()
    engine.answered("a", "human")
    engine.wants("a", 60)
    engine.end(other, output=0)
    engine.end_program("b")
    engine.let_in()
    assert engine.inside() == {"a"}


# -- calls and programs that go --------------------------------------------------------


def test_a_member_goes_on_and_its_children_with_it() -> None:
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


def test_a_call_that_is_aborted_outside_leaves_its_programs_others_there() -> None:
    engine = full()
    engine.learned.call_arrived = lambda kind, *, beside: None  # type: ignore[method-assign]  # chains
    gone, *stay = (engine.wants("b", blocks) for blocks in (60, 2, 2))
    assert engine.step() == []
    assert (engine.outside(), len(engine.queues)) == ({"large/1", gone, *stay}, 4)
    engine.end(gone)
    assert engine.outside() == {"large/1", *stay}
    assert engine.step() == stay, "they fit without it"
    engine.end("large/1")
    engine.end_program("large")
    assert (engine.admission.calls_outside, len(engine.queues)) == (0, 0)
    assert engine.step() == []
    engine.queues.check_integrity()


def test_a_call_that_runs_makes_its_program_a_member() -> None:
    """vLLM has queues of its own, which nobody is kept out of."""
    engine = full()
    call = engine.queues.calls["large/1"]
    engine.queues.discard(call)
    engine.queues.call_began(call, engine.now)
    assert engine.inside() == {"a", "large"}


@pytest.mark.parametrize(
    ("calls", "beside", "for_memory", "stays"),
    [(1, True, True, False), (2, True, True, True), (1, False, True, True), (1, True, False, True)],
)
def test_who_is_preempted_for_memory_leaves_unless_others_of_it_run_or_nobody_else_is_there(
    calls: int, beside: bool, for_memory: bool, stays: bool
) -> None:
    engine = Counted()
    mine = [engine.wants("a", 5) for _ in range(calls)]
    if beside:
        engine.wants("b", 5)
    engine.step()
    call = engine.queues.calls[mine[0]]
    engine.queues.call_preempted(call, engine.now, for_memory=for_memory)
    assert ("a" in engine.inside()) is stays


# -- who gives way ---------------------------------------------------------------------


class Turns(Counted):
    """Two members of 41 blocks, and whoever comes third has no room. Levels begin at 1 second.

    A context takes 0.625 seconds to compute: a turn is 5 seconds for each that is served beside.
    """

    def __init__(self, quantum_s: float = 1.0, slots: int = 2) -> None:
        super().__init__(slots=slots, policy="plas", quanta=(quantum_s, 1000.0), beta=math.inf)

    def begin(self) -> None:
        self.a = self.wants("a", 41)
        self.wants("c", 41)
        self.step(0.0)

    def back(self, served_s: float) -> bool:
        """Program a is served for so long, and comes back: whether it goes on."""
        self.step(served_s)
        self.end(self.a, output=0)
        self.a = self.arrive("a", 0)
        return "a" in self.inside()


@pytest.mark.parametrize(
    ("slots", "served_s", "stays"),
    [(2, 9.75, True), (2, 10.0, False), (1, 4.75, True), (1, 5.0, False)],
)
def test_a_member_gives_way_to_a_better_level_once_it_had_its_turn(
    slots: int, served_s: float, stays: bool
) -> None:
    engine = Turns(slots=slots)
    engine.begin()
    engine.wants("b", 41)
    assert engine.back(served_s) is stays


def test_its_next_turn_begins_when_it_comes_in_again() -> None:
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


def test_a_program_with_another_call_there_goes_on_though_the_set_has_outgrown_the_cache() -> None:
    engine = Counted()
    calls = [engine.wants(name, 41) for name in "ab"]
    engine.step()
    engine.arrive("a", 30 * BLOCK)
    assert engine.working.claimed > 100
    engine.end(calls[1], output=0)
    engine.wants("b", 30)
    assert engine.inside() == {"a"}


@pytest.mark.parametrize(("away", "goes_on"), [(True, True), (False, False)])
def test_who_comes_back_goes_on_if_those_that_have_calls_fit(away: bool, goes_on: bool) -> None:
    engine = Counted()
    calls = {name: engine.wants(name, 31) for name in "abc"}
    engine.step()
    engine.end(calls["a"], output=0)
    if away:
        engine.end(calls["c"], output=0)
        engine.begins("c")
    engine.arrive("a", 30 * BLOCK)
    assert ("a" in engine.inside()) is goes_on


def test_nobody_gives_way_to_nobody_to_who_fits_or_to_its_own_level() -> None:
    alone, beside, equal = Turns(), Turns(), Turns(100.0)
    for engine in (alone, beside, equal):
        engine.begin()
    assert alone.back(20.0)
    beside.step(20.0)
    beside.wants("b", 5)
    assert beside.back(0.0)
    equal.wants("b", 41)
    assert equal.back(20.0)


def test_age_counts_for_who_came_in_by_it_and_for_who_is_next() -> None:
    old, equal = Turns(), Turns(100.0)
    old.working.came_in = OLDEST_EVERY - 1
    for engine in (old, equal):
        engine.begin()
        engine.wants("b", 41)
    assert old.back(20.0)
    equal.working.came_in = OLDEST_EVERY - 1
    assert not equal.back(20.0)


def test_its_age_counts_for_one_stay_only() -> None:
    engine = Turns()
    engine.working.came_in = OLDEST_EVERY - 1
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
        self._nobody_at = None
        return super().let_in(now, running)


def play(admission: str, seed: int) -> tuple[list[list[str]], int]:
    """What began in each step of a random life, and how often those outside were looked at."""
    draw, looks = random.Random(seed), 0
    engine = Admitting(admission, blocks=40, slots=3, policy="adaptive")
    working: Any = engine.admission
    look = working._look

    def counted(*state: Any) -> Any:
        nonlocal looks
        looks += 1
        return look(*state)

    working._look = counted
    began = []
    for _ in range(300):
        for _ in range(draw.randrange(5)):
            happen(engine, draw)
        began.append(engine.step(draw.choice([0.01, 0.5])))
        engine.queues.check_integrity()
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
