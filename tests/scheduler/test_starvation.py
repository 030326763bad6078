"""Which call starves first, and that ended calls leave no state."""

from __future__ import annotations

from agentrt.scheduler import EngineProgram, QueuedCall, SchedulerConfig
from agentrt.scheduler.queues import Starvation


def program(name: str, service_s: float = 10.0) -> EngineProgram:
    row = EngineProgram(name, "t")
    row.service_s = service_s
    return row


def waiting(row: EngineProgram, name: str, born: float, level: int = 1) -> QueuedCall:
    """A call that has waited since ``born``, and has had no service of its own."""
    return QueuedCall(name, row, None, 0.0, born, level=level, since=born)


def watched(*calls: QueuedCall, most: int = 99) -> Starvation:
    """With β = 1: a call starves once it has waited as long as its program was served."""
    starvation = Starvation(SchedulerConfig(beta=1.0, max_promoted=most))
    for call in calls:
        starvation.waits(call)
    return starvation


def test_a_call_below_q_1_starves_and_a_promoted_call_does_not() -> None:
    row = program("a")
    call = waiting(row, "one", 0.0)
    starvation = watched(call)
    call.level = 0
    starvation.waits(call)
    assert starvation.promote(99.0) is None
    again = waiting(row, "two", 0.0)
    starvation.waits(again)
    assert starvation.promote(99.0) is again


def test_the_number_of_waiting_promoted_calls_is_limited() -> None:
    calls = [waiting(program(name), name, 0.0) for name in "abc"]
    starvation = watched(*calls, most=2)
    assert [starvation.promote(10.0) for _ in range(3)] == [calls[0], calls[1], None]
    assert starvation.next_moment(10.0) is None
    starvation.started(calls[0], 11.0)
    assert starvation.promote(11.0) is calls[2]
    starvation.left(calls[1])
    assert starvation._promoted == {calls[2]}


def test_a_program_whose_calls_are_gone_is_not_kept() -> None:
    rows = [program("a"), program("b")]
    calls = [waiting(row, row.program_id, 0.0) for row in rows]
    starvation = watched(*calls)
    starvation.left(calls[0])
    starvation.left(waiting(program("nobody"), "none", 0.0))
    starvation.program_changed(rows[0])
    assert (list(starvation._watched), list(starvation._debts)) == ([rows[1]], [calls[1]])
    starvation.started(calls[1], 1.0)
    starvation.left(calls[1])
    kept = starvation._watched, starvation._debts, starvation._programs
    assert [len(one) for one in kept] == [0, 0, 0]


def test_without_beta_nothing_is_watched() -> None:
    starvation = Starvation(SchedulerConfig(beta=float("inf")))
    starvation.waits(waiting(program("a"), "a", 0.0))
    assert starvation.next_moment(0.0) is None
    assert not starvation._debts
