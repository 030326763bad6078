"""The lane by itself: its line, its growth, and what it keeps of calls that went elsewhere."""

from __future__ import annotations

import pytest

from agentrt.scheduler import ProgramRow, QueuedCall
from agentrt.scheduler.policies.adaptive.lane import Lane


def waiting(name: str, started_at: float = 0.0) -> QueuedCall:
    row = ProgramRow(name, "t", started_at=started_at)
    return QueuedCall(name, row, None, None, started_at, key=(0, 0.0, int(name)), queued=True)


def lane_of(*started_at: float) -> tuple[Lane, list[QueuedCall]]:
    """A lane of two slots of eight, and who is in its line."""
    lane = Lane(0.25, 8)
    calls = [waiting(str(n), at) for n, at in enumerate(started_at)]
    for call in calls:
        lane.line_up(call)
    return lane, calls


def test_nothing_is_paid_for_when_time_begins() -> None:
    lane, calls = lane_of(0.0)
    assert lane.admit(0.0) is None
    assert lane.next_moment(0.0) == 0.0
    assert lane.admit(0.25) is calls[0]


def test_a_call_lines_up_once_and_never_while_it_is_inside() -> None:
    lane, (call,) = lane_of(0.0)
    lane.line_up(call)
    assert (len(lane._line), call.in_line) == (1, True)
    assert lane.admit(9.0) is call
    assert (lane._line, call.in_lane, call.in_line) == ([], True, False)
    lane.line_up(call)
    assert lane._line == []
    lane.leave(call)
    assert call.in_lane is False
    lane.line_up(call)
    assert lane.admit(9.0) is call


def test_no_moment_is_named_while_the_lane_is_full_or_nobody_waits() -> None:
    lane, calls = lane_of(0.0, 0.0, 0.0)
    assert [lane.admit(9.0) for _ in range(3)] == [calls[0], calls[1], None]
    assert lane.next_moment(9.0) is None
    lane.leave(calls[0])
    assert lane.next_moment(9.0) == 9.0
    calls[2].queued = False
    assert lane.next_moment(9.0) is None
    assert lane.admit(9.0) is None


@pytest.mark.parametrize(
    ("started_at", "growth"),
    [
        ([0.0, *[98.0] * 6], 1.0),
        ([0.0, *[98.0] * 7], 4.0),
        ([80.0, *[90.0] * 7], 20.0 / 11.25 / 1.5),
        ([0.0] * 9, 1.0),
        ([100.0] * 9, 1.0),
        ([], 1.0),
    ],
)
def test_it_grows_with_the_oldests_age_over_the_mean(
    started_at: list[float], growth: float
) -> None:
    """From eight in line on; up to fourfold."""
    lane, _ = lane_of(*started_at)
    assert lane._growth(100.0) == pytest.approx(growth)


def test_who_left_the_queue_otherwise_is_dropped_once_there_are_many() -> None:
    lane, calls = lane_of(*range(70))
    for call in calls[3:]:
        call.queued = False
    lane.tidy(3)
    assert len(lane._line) == 70
    lane.tidy(2)
    assert [call for *_, call in sorted(lane._line)] == calls[:3]
    assert [call.in_line for call in calls] == [True] * 3 + [False] * 67
    assert lane._started == 0.0 + 1.0 + 2.0
