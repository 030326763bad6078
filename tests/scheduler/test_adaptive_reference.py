"""Adaptive and its lane against their rules, with lists that are searched and sums taken anew."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler import QueuedCall, SchedulerConfig
from agentrt.scheduler.policies.adaptive import Adaptive, History
from agentrt.scheduler.queues import LANE
from agentrt.scheduler.table import ProgramRow
from tests.scheduler.harness import Harness

# -- the lane --------------------------------------------------------------------------


class Lane:
    """A share of the batch for the oldest programs, paid for by a bucket of slot-seconds."""

    def __init__(self, share: float, slots: int) -> None:
        self.share, self.slots = share * slots, slots
        self.rate, self.credit, self.at = self.share, 0.0, 0.0
        self.line: list[QueuedCall] = []
        self.inside: list[QueuedCall] = []

    def grown(self, now: float) -> float:
        """Up to four times its share while the oldest is 1.5 times as old as the mean, or more."""
        ages = [now - call.program.started_at for call in self.line]
        if len(ages) < 8 or sum(ages) <= 0:
            return self.share
        unfair = max(ages) / (sum(ages) / len(ages))
        return min(self.share * min(max(unfair / 1.5, 1.0), 4.0), max(self.share, self.slots))

    def admit(self, now: float) -> QueuedCall | None:
        """The oldest program's call, while credit is left and the lane is not full."""
        earned = self.rate * (now - self.at)
        self.credit = min(self.credit + earned, max(1.0, self.rate))
        self.at, self.rate = now, self.grown(now)
        if self.credit <= 0 or len(self.inside) >= math.ceil(self.rate) or not self.line:
            return None
        oldest = min(self.line, key=lambda call: call.program.started_at)
        self.line.remove(oldest)
        self.inside.append(oldest)
        return oldest

    def next_moment(self, now: float) -> float | None:
        """When the bucket is above zero again."""
        if len(self.inside) >= math.ceil(self.rate) or not self.line:
            return None
        return max(now, self.at - self.credit / self.rate)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([0.0, 0.125, 0.25, 0.75]),
    st.sampled_from([1, 2, 4, 8]),
    st.lists(
        st.tuples(
            st.sampled_from(["arrive"] * 5 + ["look", "look", "serve", "serve", "end"]),
            st.integers(0, 15),
            st.sampled_from([0.0, 0.0, 0.25, 0.5, 4.0, 32.0]),
        ),
        min_size=20,
        max_size=80,
    ),
)
def test_the_lane_admits_as_the_reference(
    share: float, slots: int, story: list[tuple[str, int, float]]
) -> None:
    """Only the lane's calls run here, and none is aborted, so that all others are in line."""
    harness, lane = Harness("adaptive", slots=slots, lane=share), Lane(share, slots)
    for event, number, seconds in story:
        harness.now += seconds if event != "serve" else 0.0
        running = harness.running
        if event == "arrive":
            lane.line.append(harness.call(f"p{number}"))
        elif event == "serve" and running:
            served = running[number % len(running)]
            harness.serve(served, seconds)
            lane.credit -= seconds
        elif event == "end" and lane.inside:
            harness.end(lane.inside.pop(number % len(lane.inside)))
        elif event == "look":
            for call in harness.queues.promote(harness.now):
                assert share > 0
                assert call is lane.admit(harness.now)
                assert harness.start() is call
            assert share == 0 or lane.admit(harness.now) is None
        assert all(call.in_lane and call.level == LANE.level for call in lane.inside)
        assert not any(call.in_lane for call in lane.line)
        moment = lane.next_moment(harness.now) if share else None
        assert harness.queues.next_promotion(harness.now) == (moment and pytest.approx(moment))


# -- what is learned -------------------------------------------------------------------

Key = tuple[str, str, int, str]


def bin_of(seconds: float) -> int:
    """How many of the edges, each half a doubling above the one before, were passed."""
    return sum(1 for n in range(80) if 0.05 * 2 ** (n / 2) <= seconds) if seconds > 0.05 else 0


def edge(number: int) -> float:
    return float(0.05 * 2 ** ((number - 1) / 2)) if number else 0.0


@dataclass
class Past:
    """What ended programs needed still, wherever one was asked about them: every sample."""

    samples: dict[Key, list[float]] = field(default_factory=dict)
    asked: dict[str, dict[Key, float]] = field(default_factory=dict)

    def hint(self, row: ProgramRow) -> list[str]:
        return [f"hint {math.floor(math.log2(row.size_hint))}"] if row.size_hint else []

    def refined(self, row: ProgramRow, what: str, estimate: float) -> float:
        """The mean of the samples there, with the estimate counted as eight more."""
        key = (row.tenant, row.type, bin_of(row.attained_s), what)
        asked = self.asked.setdefault(row.program_id, {})
        if key not in asked and len(asked) < 48:
            asked[key] = row.attained_s
        known = self.samples.get(key, [])
        if not known:
            return estimate
        return max((sum(known) + 8 * estimate) / (len(known) + 8), 0.05)

    def expect(self, row: ProgramRow, node: str, path_s: float) -> float:
        aged = self.refined(row, "", max(path_s, 0.05))
        turn = f"turn {math.floor(2 * math.log2(row.finished_calls + 1))}"
        ratios = [self.refined(row, what, aged) / aged for what in (*self.hint(row), turn)]
        by_node = self.refined(row, f"node {node}", aged) / aged
        telling = by_node <= 0.5 or by_node >= 2
        return max(aged * math.prod(ratios) * (by_node if telling else 1.0), 0.05)

    def usual(self, row: ProgramRow) -> float | None:
        """The mean of whole programs with such a hint, or of all; of twenty or more."""
        for what in (*self.hint(row), ""):
            whole = self.samples.get((row.tenant, row.type, 0, what), [])
            if len(whole) >= 20:
                return sum(whole) / len(whole)
        return None

    def learn(self, row: ProgramRow) -> None:
        """It was in every bin up to its last one, and in others where it was first asked about."""
        seen = self.asked.pop(row.program_id, {})
        for what in ("", *self.hint(row)):
            for age in range(bin_of(row.service_s) + 1):
                seen.setdefault((row.tenant, row.type, age, what), edge(age))
        for key, attained in seen.items():
            self.samples.setdefault(key, []).append(max(row.service_s - attained, 0.0))

    def priority(self, row: ProgramRow, node: str, path_s: float) -> tuple[int, float, float]:
        """Level, quantum and order of a call."""
        expected = self.expect(row, node, path_s)
        attained = max(row.attained_s, 0.25)
        usual = self.usual(row)
        if usual is not None:
            expected = min(expected, max(2 * usual, attained))
        size = math.floor(math.log2(attained * expected) / 2)
        return (
            math.floor(2 * math.log2(expected)),
            max(0.5, attained / 8, expected / 8),
            size * 2.0**32 + row.started_at,
        )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1.0, 1.1, 3.0, 9.0, 40.0]),
            st.sampled_from(["a", "a", "b"]),
            st.sampled_from([None, 3.0, 70.0]),
            st.sampled_from(["", "plan", "act"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=70,
    )
)
def test_expectations_are_those_of_the_reference(
    story: list[tuple[float, str, float | None, str, bool]],
) -> None:
    """Programs that are asked about as they go on, and end; some are lost."""
    policy, past = Adaptive(SchedulerConfig("adaptive", lane=0.0)), Past()
    for number, (total, type_, hint, node, ends) in enumerate(story):
        row = ProgramRow(f"p{number}", type_, size_hint=hint, started_at=float(number))
        for part in (0.0, 0.3, 0.33, 0.7):
            row.attained_s = row.service_s = row.path_s = part * total
            call = QueuedCall(f"c{part}", row, None, row.path_s, 0.0, node)
            expected = past.priority(row, node, row.path_s)
            found = policy.priority(call, 0.0)
            assert (found.level, found.order) == (expected[0], expected[2])
            assert found.quantum_s == pytest.approx(expected[1])
            row.finished_calls += 1
        row.service_s = total
        if ends:
            policy.program_ended(row, 0.0)
            past.learn(row)
        else:
            policy.program_lost(row)
            past.asked.pop(row.program_id)
    assert not policy.history._asked
    assert {key: cell.n for key, cell in policy.history._cells.items()} == {
        key: len(samples) for key, samples in past.samples.items()
    }


def test_a_program_counts_where_it_was_first_asked_about() -> None:
    """Of two questions in one bin of age, the first says what it had."""
    history, row = History(), ProgramRow("p", "t")
    for attained in (1.0, 1.1):
        row.attained_s = attained
        history.expect(row, "", attained)
    row.service_s = 9.0
    history.learn(row)
    assert history._cells["default", "t", bin_of(1.0), ""].mean_s == 8.0
