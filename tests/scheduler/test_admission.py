"""Which programs may use the cache now: by name, by a cap, and by memory, with claims counted by
hand.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.admission import Admission, Cap, Capacity, make_admission
from agentrt.scheduler.admission.memory import OLDEST_EVERY, WorkingSet
from agentrt.scheduler.events import CallFinished, StepFinished
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.means import DOUBT
from agentrt.scheduler.limits import SCANNED
from agentrt.scheduler.queues import Priority
from agentrt.scheduler.state import QueuedCall
from tests.scheduler.admitting import BLOCK, KIND, Admitting, Counted, full, held

# -- by name, and by a cap -------------------------------------------------------------


def made(**settings: Any) -> Any:
    return make_admission(SchedulerConfig(**settings), Capacity(100, 16, 8), Learned())


def test_admissions_are_made_by_name() -> None:
    assert made(admission="off") is None
    assert type(made(admission="cap")) is Cap
    assert type(made(admission="memory")) is WorkingSet
    assert type(made(admission="agentrt.scheduler.admission.memory:WorkingSet")) is WorkingSet


class Half(Admission):
    """An admission that does not decide which programs are admitted."""

    def may_stay(self, call: QueuedCall) -> bool:
        return True


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"admission": "all"},
            "unknown admission 'all'; available: off, cap, memory, or package.module:Class",
        ),
        (
            {"admission": "no.such:Thing"},
            "admission 'no.such:Thing': .*; available: off, cap, memory, or package.mod",
        ),
        ({"admission": "math:no:Thing"}, "module 'math' has no attribute 'no:Thing'"),
        ({"admission": "agentrt.scheduler.state:QueuedCall"}, "is not a complete subclass of"),
        (
            {"admission": "tests.scheduler.test_admission:Half"},
            "is not a complete subclass of agentrt.scheduler.admission.Admission",
        ),
        ({"admission_cap": 0}, "admission_cap must be at least 1"),
        ({"ttft_target": 0.0}, "ttft_target must be a finite number of seconds above 0"),
        ({"ttft_target": math.inf}, "ttft_target must be a finite number of seconds above 0"),
    ],
)
def test_an_unknown_admission_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        made(**settings)


def test_an_admission_whose_module_raises_any_error_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_admission.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    message = "cannot load admission 'broken_admission:Mine': division by zero; available: off"
    with pytest.raises(ConfigError, match=message):
        made(admission="broken_admission:Mine")


def test_a_cap_admits_programs_in_order_of_arrival() -> None:
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


def test_the_lane_promotes_only_admitted_calls() -> None:
    engine = Admitting("cap", admission_cap=1, policy="adaptive", lane=0.5)
    for name in "abc":
        engine.arrive(name, 16)
    engine.let_in()
    assert [call.call_id for call in engine.core.promote(100.0)] == ["a/0"]


# -- what is claimed -------------------------------------------------------------------


def test_programs_are_admitted_while_their_contexts_fit() -> None:
    engine = Counted()
    a, b = engine.wants("a", 60), engine.wants("b", 40)
    assert engine.step() == [a, b]
    assert (engine.working.claimed, held(engine.working)) == (100, 0)
    c = engine.wants("c", 1)
    assert engine.step() == []
    engine.end(b)
    engine.end_program("b")
    assert engine.step() == [c]


def test_all_programs_admitted_together_are_named() -> None:
    engine = full()
    some = [engine.wants(name, 15) for name in ("b", "c")]
    assert [call.call_id for call in engine.core.admit(0.0, 1)] == some


def test_a_program_that_waits_for_a_tool_claims_its_context_beside_its_types_prefix() -> None:
    for blocks, fits in ((70, True), (72, False)):
        engine = Counted()
        engine.learned.of_type(KIND).shared.add(10 * BLOCK)
        call = engine.wants("a", 40)
        engine.step()
        engine.end(call, output=0)
        engine.begins("a")
        engine.wants("b", blocks)
        engine.let_in()
        assert ("b" in engine.inside()) is fits


def test_a_call_claims_half_of_its_types_expected_output() -> None:
    engine = Counted()
    for _ in range(2048):
        engine.learned.call_ended(KIND, 6 * BLOCK)
    engine.wants("a", 10)
    engine.step()
    assert engine.working.claimed == 9 + 3 + 1


def test_cached_tokens_are_not_claimed_again() -> None:
    engine = Counted()
    engine.contexts["a"] = 4 * BLOCK
    engine.arrive("a", 9 * BLOCK, fresh=True)
    engine.let_in()
    assert engine.working.claimed == 9 + 1
    engine.contexts["b"] = 20 * BLOCK
    engine.arrive("b", 10 * BLOCK, fresh=True)
    engine.step()
    assert engine.working.claimed == 4 + (5 + 1) + (16 + 0 + 1), "what both found counts once"


def test_each_branch_is_counted_and_their_shared_prefix_once() -> None:
    engine = Counted()
    claims = []
    for tokens, beside in ((10, 0), (20, 0), (16, 15)):
        engine.arrive("a", tokens * BLOCK, beside=beside * BLOCK)
        engine.step()
        claims.append(engine.working.claimed)
    # A block more for the rest of each call; 15 of the third one's are the second one's, too.
    assert claims == [10 + 1, 30 + 2, 31 + 3]


def test_a_chain_claims_the_context_of_its_next_call() -> None:
    engine = Counted()
    call = engine.arrive("a", 10 * BLOCK)
    engine.step()
    engine.end(call, output=0)
    assert (engine.working.claimed, held(engine.working)) == (10, 10)
    engine.arrive("a", 2 * BLOCK)
    assert (engine.working.claimed, held(engine.working)) == (12 + 1, 0)
    engine.arrive("a", 4 * BLOCK, fresh=True)
    assert engine.working.claimed == 12 + 4 + 2


def test_an_idle_engine_admits_the_first_program_of_any_size() -> None:
    engine = Counted()
    large = engine.wants("a", 1000)
    assert engine.step() == [large]
    assert engine.working.claimed == 100
    engine.end(large)
    engine.end_program("a")
    assert engine.working.claimed == len(engine.working.residents) == 0


def test_the_first_program_claims_a_shared_prefix_and_the_last_releases_it() -> None:
    engine = Counted(slots=4)
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    calls = {name: engine.wants(name, 31) for name in "abcd"}
    engine.step()
    claimed = [engine.working.claimed]
    for name, call in calls.items():
        engine.end(call, output=0)
        engine.end_program(name)
        claimed.append(engine.working.claimed)
    # 21 each, and 10 for the prefix.
    assert claimed == [94, 73, 52, 31, 0]
    assert held(engine.working) == 0


@pytest.mark.parametrize(("there", "fits"), [(69, True), (70, False)])
def test_a_program_needs_room_for_an_uncached_prefix_of_its_type(there: int, fits: bool) -> None:
    engine = Counted(slots=1)
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    engine.wants("u", there, "u")
    engine.step()
    engine.wants("a", 31)
    engine.let_in()
    assert ("a" in engine.inside()) is fits


@pytest.mark.parametrize(("blocks", "fits"), [(58, True), (59, False)])
def test_a_program_needs_no_room_for_a_cached_prefix(blocks: int, fits: bool) -> None:
    engine = Counted()
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    for name, size in (("a", 31), ("b", 31), ("c", blocks)):
        engine.wants(name, size)
    engine.let_in(2)
    assert ("c" in engine.inside()) is fits
    assert engine.working.claimed == 10 + 21 + 21 + (48 if fits else 0)


def test_a_prefix_is_learned_only_from_first_calls() -> None:
    engine = Counted()
    first = engine.wants("a", 9)
    engine.step()
    engine.end(first, output=0)
    engine.wants("a", 9)
    engine.contexts["b"] = 64  # two calls at once: which was the first?
    engine.wants("b", 2)
    engine.wants("b", 2)
    engine.step()
    assert engine.learned.of_type(KIND).shared.value == 0
    engine.contexts["c"] = 64
    engine.arrive("c", 80, fresh=True)
    engine.arrive("d", 80, fresh=True)  # what others had there may have been evicted
    engine.step()
    assert engine.learned.of_type(KIND).shared.value == 64


@pytest.mark.parametrize("what", ["ended", "outside", "member"])
def test_a_program_keeps_the_prefix_known_at_its_start(what: str) -> None:
    engine = Counted()
    if what == "outside":
        engine.wants("b", 90)
    engine.step()
    first = engine.wants("a", 20)
    engine.step()
    row = engine.core.calls[first].program
    if what == "ended":
        engine.end(first, output=0)
        engine.begins("a", "human")
        engine.wants("b", 90)
        engine.let_in()
        assert engine.inside() == {"b"}
    elif what == "member":
        engine.core.handle(CallFinished(engine.core.calls[first], engine.now))
    engine.learned.of_type(KIND).shared.add(10 * BLOCK)
    engine.wants("a", 20)
    assert row.shared_tokens == 0


# -- what is learned -------------------------------------------------------------------


def test_outputs_are_learned_by_type() -> None:
    engine = Admitting("memory")
    for program, type, output in (("a", "t", 40), ("b", "u", 0)):
        call = engine.arrive(program, 16, type)
        engine.step()
        engine.end(call, output)
    of_all = 20.0
    assert engine.learned.output(KIND) == int(of_all + (40 - of_all) / (1 + DOUBT))
    assert engine.learned.output(("default", "u")) == int(of_all + (0 - of_all) / (1 + DOUBT))


def test_a_type_with_parallel_calls_branches() -> None:
    engine = Admitting("memory")
    engine.arrive("a", 16)
    engine.arrive("b", 16, "u")
    assert not engine.learned.of_type(KIND).branches
    engine.arrive("a", 16)
    assert engine.learned.of_type(KIND).branches
    assert not engine.learned.of_type(("default", "u")).branches


def test_the_time_of_a_token_is_learned_from_steps() -> None:
    engine = Admitting("memory")
    call = engine.arrive("a", 16)
    engine.step(0.0)
    engine.core.handle(StepFinished([call], 0.5, 0.5, tokens=1))
    engine.core.handle(StepFinished([call], 1.5, 2.0, tokens=17))
    assert engine.learned.costs.token_s == 1.0 / 16


# -- who is looked at ------------------------------------------------------------------


def test_a_program_without_room_delays_no_fitting_program_and_keeps_its_turn() -> None:
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
def test_the_number_of_examined_programs_is_limited(before: int, comes_in: bool) -> None:
    engine = full()
    for n in range(before - 1):
        engine.wants(f"large{n}", 60)
    engine.wants("b", 30)
    engine.let_in()
    assert ("b" in engine.inside()) is comes_in


@pytest.mark.parametrize(("running", "comes_in"), [(7, True), (8, False)])
def test_no_program_is_passed_without_a_free_slot(running: int, comes_in: bool) -> None:
    engine = full()
    engine.wants("b", 30)
    engine.let_in(running)
    assert ("b" in engine.inside()) is comes_in


def test_no_program_passes_the_oldest_when_its_age_makes_it_next() -> None:
    engine = full()
    engine.wants("b", 30)
    engine.working.admissions = OLDEST_EVERY - 1
    engine.let_in()
    assert engine.inside() == {"a"}


def test_the_number_of_programs_that_pass_a_large_program_is_limited() -> None:
    """Small programs keep arriving, and the policy prefers small programs."""
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


def test_a_program_is_admitted_after_waiting_for_the_target() -> None:
    """The wait is counted from the call's own arrival."""
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


def branching(engine: Counted, *, branches: bool = True, type: str = "u") -> None:
    """Programs of this type have branches, or not."""
    for _ in range(4):
        engine.learned.of_type(("default", type)).beside.add(branches)


@pytest.mark.parametrize(
    ("branches", "running", "comes_in"), [(True, 3, True), (True, 4, False), (False, 3, False)]
)
def test_branches_without_room_are_admitted_while_the_batch_is_nearly_empty(
    branches: bool, running: int, comes_in: bool
) -> None:
    engine = Counted(slots=8)
    engine.wants("a", 60)
    engine.step()
    branching(engine, branches=branches)
    engine.arrive("b", 58 * BLOCK, "u")
    engine.let_in(running)
    assert ("b" in engine.inside()) is comes_in


def test_no_program_is_kept_out_while_all_programs_branch() -> None:
    engine = Counted(slots=8)
    branching(engine)
    for name in "abc":
        engine.wants(name, 60, "u")
    engine.let_in(8)
    assert engine.inside() == {"a", "b", "c"}


def test_the_types_of_a_few_programs_only_are_looked_at() -> None:
    engine = Counted(slots=100)
    for number in range(65):
        branching(engine, type=f"u{number}")
        engine.wants(f"p{number}", 1, f"u{number}")
    engine.let_in(99)
    assert len(engine.inside()) == 65
    engine.wants("large", 60, "u1")
    engine.let_in(99)
    assert "large" not in engine.inside()
    engine.end(next(iter(engine.core.calls)))
    engine.end_program("p0")
    engine.wants("other", 60, "u2")
    engine.let_in(99)
    assert {"large", "other"} <= engine.inside()


def test_programs_that_branch_need_room_beside_a_chain_until_the_chain_ends() -> None:
    engine = Counted(slots=8)
    branching(engine)
    engine.wants("chain", 60)
    engine.step()
    engine.wants("b", 60, "u")
    engine.let_in(8)
    assert engine.inside() == {"chain"}
    engine.end(next(iter(engine.core.calls)))
    engine.end_program("chain")
    engine.wants("c", 60, "u")
    engine.let_in(8)
    assert engine.inside() == {"b", "c"}


def test_a_chain_that_waits_for_admission_is_a_reason_to_keep_others_out() -> None:
    engine = Counted(slots=8)
    branching(engine)
    engine.wants("b", 60, "u")
    engine.step()
    chain = engine.wants("chain", 60)
    engine.wants("c", 60, "u")
    engine.let_in(8)
    assert engine.inside() == {"b"}
    engine.end(chain)
    engine.end_program("chain")
    engine.let_in(8)
    assert engine.inside() == {"b", "c"}


def overfull() -> Counted:
    """Two programs with two calls each were admitted, and claim more than the cache."""
    engine = Counted(slots=2)
    branching(engine)
    for name, blocks in (("b", 20), ("c", 40)):
        engine.wants(name, blocks, "u")
        engine.wants(name, blocks, "u")
    engine.step()
    return engine


def test_a_chain_precedes_calls_behind_it_of_programs_that_were_admitted_without_room() -> None:
    engine = overfull()
    assert engine.inside() == {"b", "c"}
    engine.wants("chain", 10)
    engine.let_in(2)
    assert "chain" not in engine.inside()
    engine.wants("c", 10, "u")
    engine.let_in(2)
    assert "chain" in engine.inside()


def test_a_program_that_gave_up_room_needs_it_again_after_it_was_expelled() -> None:
    """Its claim for a free slot was 0 blocks, by which the gain of the slot was divided."""
    engine = overfull()
    engine.wants("chain", 10)
    engine.wants("c", 10, "u")
    engine.let_in(2)
    row = engine.table.get("c")
    assert row is not None
    gave_up = row.ceded
    claim = row.claim
    engine.admission.expel(row)
    assert gave_up
    assert row.claim == claim + gave_up
    engine.let_in(1)


def test_a_chain_precedes_programs_with_one_call_that_were_admitted_without_room() -> None:
    """Programs of a type that branches often begin with a single call."""
    engine = Counted(slots=2)
    branching(engine)
    for number in range(8):
        engine.wants(f"p{number}", 20, "u")
    engine.step()
    assert len(engine.inside()) == 8
    engine.wants("chain", 10)
    engine.let_in(2)
    assert "chain" not in engine.inside()
    engine.wants("late", 20, "u")
    for number in range(2, 8):  # their calls go behind the chain's
        call = next(iter(engine.core.calls[f"p{number}/{number}"].program.queued.values()))
        engine.core.queue.set_priority(call, Priority(call.level + 1))
    engine.let_in(2)
    assert "chain" in engine.inside()
