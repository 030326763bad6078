"""Who starves first, and that nothing is kept of calls that are gone."""

from __future__ import annotations

from agentrt.scheduler import ProgramRow, QueuedCall, SchedulerConfig
from agentrt.scheduler.starvation import Starvation


def program(name: str, service_s: float = 10.0) -> ProgramRow:
    row = ProgramRow(name, "t")
    row.service_s = service_s
    return row


def waiting(row: ProgramRow, name: str, born: float, level: int = 1) -> QueuedCall:
    """A call that has waited since ``born``, and has had no service of its own."""
    return QueuedCall(name, row, None, 0.0, born, level=level, since=born)


def watched(*calls: QueuedCall, most: int = 99) -> Starvation:
    """With β = 1: a call starves once it has waited as long as its program was served."""
    starvation = Starvation(SchedulerConfig(beta=1.0, max_promoted=most))
    for call in calls:
        starvation.waits(call)
    return starvation


def test_the_first_of_a_programs_calls_sets_its_moment() -> None:
    row = program("a")
    late, early, last = (waiting(row, name, born) for name, born in (("l", 5), ("e", 3), ("z", 9)))
    starvation = watched(late)
    assert starvation.next_moment(0.0) == 15.0
    starvation.waits(early)
    starvation.waits(last)
    assert starvation.next_moment(0.0) == 13.0
    assert starvation.promote(13.0) is early
    assert starvation.promote(13.0) is None
    assert starvation.next_moment(13.0) == 15.0


def test_a_call_below_q_1_starves_and_one_that_rose_does_not() -> None:
    row = program("a")
    call = waiting(row, "one", 0.0)
    starvation = watched(call)
    call.level = 0
    starvation.waits(call)
    assert starvation.promote(99.0) is None
    again = waiting(row, "two", 0.0)
    starvation.waits(again)
    assert starvation.promote(99.0) is again


def test_whoever_is_gone_hides_nobody_behind_it() -> None:
    """All calls of ``a`` are gone, and the first of ``b``. ``c`` starves last, and is found."""
    gone, first, second, third = (
        waiting(program("a"), "gone", 0.0),
        waiting(b := program("b"), "first", 1.0),
        waiting(b, "second", 40.0),
        waiting(program("c"), "third", 2.0),
    )
    starvation = watched(gone, first, second, third)
    starvation.left(gone)
    starvation.began(first, 5.0)
    assert starvation.promote(20.0) is third
    assert starvation.promote(20.0) is None
    assert starvation.promote(50.0) is second


def test_a_moment_that_changed_hides_nobody() -> None:
    """The program of the first has been served since: its moment is a later one."""
    first, second = waiting(program("a"), "first", 0.0), waiting(program("b"), "second", 1.0)
    starvation = watched(first, second)
    first.program.service_s = 30.0
    starvation.program_changed(first.program)
    assert starvation.promote(20.0) is second
    assert starvation.promote(29.0) is None
    assert starvation.promote(30.0) is first


def test_so_many_promoted_calls_wait_and_no_more() -> None:
    calls = [waiting(program(name), name, 0.0) for name in "abc"]
    starvation = watched(*calls, most=2)
    assert [starvation.promote(10.0) for _ in range(3)] == [calls[0], calls[1], None]
    assert starvation.next_moment(10.0) is None
    starvation.began(calls[0], 11.0)
    assert starvation.promote(11.0) is calls[2]
    starvation.left(calls[1])
    assert starvation._promoted == {calls[2]}


def test_its_waits_add_up_until_it_is_promoted_and_then_count_anew() -> None:
    """It waits for 4 s, runs for 1 s and waits again: of 10 + 1 s, 7 are left to be waited."""
    call = waiting(program("a"), "a", 0.0)
    starvation = watched(call)
    starvation.began(call, 4.0)
    call.served_s, call.since = 1.0, 5.0
    starvation.waits(call)
    assert starvation.next_moment(5.0) == 5.0 + 10.0 + 1.0 - 4.0
    assert starvation.promote(12.0) is call
    starvation.began(call, 13.0)
    call.since = 14.0
    starvation.waits(call)
    assert starvation.next_moment(14.0) == 14.0 + 10.0 - 1.0


def test_a_program_whose_calls_are_gone_is_not_kept() -> None:
    rows = [program("a"), program("b")]
    calls = [waiting(row, row.program_id, 0.0) for row in rows]
    starvation = watched(*calls)
    starvation.left(calls[0])
    starvation.left(waiting(program("nobody"), "none", 0.0))
    starvation.program_changed(rows[0])
    assert (list(starvation._watched), list(starvation._debts)) == ([rows[1]], [calls[1]])
    starvation.began(calls[1], 1.0)
    starvation.left(calls[1])
    kept = starvation._watched, starvation._debts, starvation._programs
    assert [len(one) for one in kept] == [0, 0, 0]


def test_without_beta_nothing_is_watched() -> None:
    starvation = Starvation(SchedulerConfig(beta=float("inf")))
    starvation.waits(waiting(program("a"), "a", 0.0))
    assert starvation.next_moment(0.0) is None
    assert not starvation._debts
