"""The policy adaptive against its rules, which keep every sample."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.adaptive import Adaptive
from tests.scheduler.ages import bin_of, edge

Key = tuple[str, str, str, int]


@dataclass
class Reference:
    """Every sample of the remaining service of ended programs, by the age at which they were
    ranked.
    """

    samples: dict[Key, list[float]] = field(default_factory=dict)
    asked: dict[str, dict[Key, float]] = field(default_factory=dict)

    def unknown(self, path_s: float) -> float:
        """The mean of all ended programs, and at least the path. Before a program has ended, the
        least expected time.
        """
        totals = self.samples.get(("", "", "", 0), [])
        return max(sum(totals) / len(totals), path_s, 0.05) if totals else 0.05

    def refined(self, key: Key, prior: float) -> float:
        """The mean of the samples of this age, with the prior counted as eight samples."""
        known = self.samples.get(key, [])
        return max((sum(known) + 8 * prior) / (len(known) + 8), 0.05)

    def expect(self, row: EngineProgram, node: str, path_s: float) -> float:
        def key(what: str) -> Key:
            return row.tenant, row.type, what, bin_of(row.attained_s)

        aged = self.refined(key(""), self.unknown(path_s))
        expected = aged
        more = [f"turn {math.floor(2 * math.log2(row.finished_calls + 1))} {node}"]
        if row.size_hint:
            more.append(f"hint {math.floor(math.log2(row.size_hint))}")
        for what in more:
            self.asked.setdefault(row.program_id, {}).setdefault(key(what), row.attained_s)
            expected *= self.refined(key(what), aged) / aged
        return max(expected, 0.05)

    def learn(self, row: EngineProgram) -> None:
        """Add samples for every age up to the last age of the program."""
        seen = self.asked.pop(row.program_id, {})
        for age in range(bin_of(row.service_s) + 1):
            seen[row.tenant, row.type, "", age] = edge(age)
        seen["", "", "", 0] = 0.0
        for key, attained in seen.items():
            self.samples.setdefault(key, []).append(max(row.service_s - attained, 0.0))


def priority(
    row: EngineProgram, expected: float, ended: bool
) -> tuple[int, float, tuple[int, float]]:
    """Level, quantum and order of a call whose program is expected to need this service."""
    quantum = max(0.5, row.attained_s / 8, expected / 8)
    size = math.floor(math.log2(row.attained_s + expected)) if ended else 0
    return math.floor(2 * math.log2(expected)), quantum, (size, row.started_at)


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
def test_priorities_are_those_of_the_reference(
    story: list[tuple[float, str, float | None, str, bool]],
) -> None:
    """Programs are ranked while they run, and end; some are lost."""
    policy, reference = Adaptive(SchedulerConfig("adaptive", lane=0.0)), Reference()
    for number, (total, type_, hint, node, ends) in enumerate(story):
        row = EngineProgram(f"p{number}", type_, size_hint=hint, started_at=float(number))
        for part in (0.0, 0.3, 0.33, 0.7):
            row.attained_s = row.service_s = row.path_s = part * total
            call = QueuedCall(f"c{part}", row, None, row.path_s, 0.0, node=node)
            expected = policy._expected_s(row, node, row.path_s)
            assert expected == pytest.approx(reference.expect(row, node, row.path_s))
            assert policy.priority(call, 0.0) == priority(row, expected, bool(reference.samples))
            row.finished_calls += 1
        row.service_s = total
        if ends:
            policy.program_ended(row, 0.0)
            reference.learn(row)
        else:
            policy.program_lost(row)
            reference.asked.pop(row.program_id)
    assert not policy._visits
    found = policy.learned.service.entries()
    assert {(*kind, age): one.left_s.n for kind, age, one in found} == {
        key: len(samples) for key, samples in reference.samples.items()
    }
