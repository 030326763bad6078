"""Who starves first, and that nothing is kept of calls that are gone."""

from __future__ import annotations

from agentrt.scheduler import ProgramRow, QueuedCall
from agentrt.scheduler.starvation import Starvation


def program(name: str, service_s: float = 10.0) -> ProgramRow:
    row = ProgramRow(name, "t")
    row.service_s = service_s
    return row


def waiting(row: ProgramRow, name: str, born: float, level: int = 1) -> QueuedCall:
    """A call that has waited since ``born``, and has had no service of its own."""
    return QueuedCall(
        name, row, None, 0.0, born, level=level, since=born, debt_since=born, queued=True
    )


def watched(*calls: QueuedCall) -> Starvation:
    """With β = 1: a call starves once it has waited as long as its program was served."""
    starvation = Starvation(1.0)
    for call in calls:
        starvation.watch(call)
    return starvation


def test_the_first_of_a_programs_calls_sets_its_moment() -> None:
    row = program("a")
    late, early, last = (waiting(row, name, born) for name, born in (("l", 5), ("e", 3), ("z", 9)))
    starvation = watched(late)
    assert starvation.next_moment() == 15.0
    starvation.watch(early)
    starvation.watch(last)
    assert starvation.next_moment() == 13.0
    assert starvation.pop_starved(13.0) is early
    assert starvation.pop_starved(13.0) is None
    assert starvation.next_moment() == 15.0


def test_a_call_below_q_1_starves_and_one_that_rose_does_not() -> None:
    row = program("a")
    call = waiting(row, "one", 0.0, level=1)
    starvation = watched(call)
    call.level = 0
    assert starvation.pop_starved(99.0) is None
    again = waiting(row, "two", 0.0, level=1)
    starvation.watch(again)
    assert starvation.pop_starved(99.0) is again


def test_whoever_is_gone_hides_nobody_behind_it() -> None:
    """All calls of ``a`` are gone, and the first of ``b``. ``c`` starves last, and is found."""
    gone, first, second, third = (
        waiting(program("a"), "gone", 0.0),
        waiting(b := program("b"), "first", 1.0),
        waiting(b, "second", 40.0),
        waiting(program("c"), "third", 2.0),
    )
    starvation = watched(gone, first, second, third)
    gone.since = first.since = None
    assert starvation.pop_starved(20.0) is third
    assert starvation.pop_starved(20.0) is None
    assert starvation.pop_starved(50.0) is second


def test_a_moment_that_was_filed_anew_hides_nobody() -> None:
    """The program of the first entry has been served since: its moment is a later one."""
    first, second = waiting(program("a"), "first", 0.0), waiting(program("b"), "second", 1.0)
    starvation = watched(first, second)
    first.program.service_s = 30.0
    starvation.refresh(first.program)
    assert starvation.pop_starved(20.0) is second
    assert starvation.pop_starved(29.0) is None
    assert starvation.pop_starved(30.0) is first


def test_a_program_whose_calls_are_forgotten_is_not_kept() -> None:
    rows = [program("a"), program("b")]
    calls = [waiting(row, row.program_id, 0.0) for row in rows]
    starvation = watched(*calls)
    calls[0].since = None
    starvation.forget(calls[0])
    assert list(starvation._watches) == ["b"]
    starvation.forget(waiting(program("nobody"), "none", 0.0))
