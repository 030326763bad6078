"""Every decision of ten recorded workloads is taken again, call by call and step by step."""

from __future__ import annotations

import pytest

from tests.lab.engine.golden_workloads import WORKLOADS, read_golden
from tests.lab.engine.replaying import replay

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("name", WORKLOADS)
def test_decisions_are_those_of_the_recording(name: str) -> None:
    replayed = replay(read_golden(name))
    assert replayed.difference is None, str(replayed.difference)
    assert replayed.steps > 300


def test_the_recordings_hold_every_kind_of_decision() -> None:
    steps = [
        event for name in WORKLOADS for event in read_golden(name) if event["event"] == "schedule"
    ]
    states = {state for step in steps for _, state, _, _ in step["queued"]}
    assert states == {"waiting", "not admitted", "deferred"}
    assert sum(len(step["preempted"]) for step in steps) > 100
    assert any(promotions for step in steps for *_, promotions in step["queued"])
    assert len({level for step in steps for _, _, level, _ in step["queued"]}) > 5
