"""A step charged at once is each of its calls charged by itself."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import pytest

from agentrt.scheduler import QueuedCall
from tests.scheduler.harness import Harness
from tests.scheduler.integrity import check_queues

NAMES = [f.name for f in fields(QueuedCall) if f.name not in ("program", "item")]


def play(policy: str, seed: int, *, at_once: bool) -> tuple[list[list[Any]], list[list[str]]]:
    """Calls of a few programs run, are preempted and come back. Their fields, and what moved."""
    draw, harness = random.Random(seed), Harness(policy, slots=4, quanta=(0.5, 1.0, 2.0), lane=0.3)
    queues, moved = harness.queues, []
    for _ in range(60):
        harness.call(f"p{draw.randrange(6)}")
        queues.promote(harness.now)
        if len(harness.running) < 4:
            harness.start()
        elif draw.random() < 0.4:
            # Its last step is still in flight: it is charged for it while it waits.
            harness.preempt(draw.choice(harness.running))
        seconds = draw.choice((0.1, 0.25, 0.5))
        harness.now += seconds
        charged = [c for c in queues.calls.values() if c.since is None or c.preemptions]
        if at_once:
            ids = [call.call_id for call in charged]
            those = queues.charge_step(["of nobody", *ids], seconds, harness.now)
        else:
            those = [call for call in charged if queues.charge(call, seconds, harness.now)]
        moved.append([call.call_id for call in those])
        check_queues(queues)
    told = [[getattr(c, name) for name in NAMES] for c in queues.calls.values()]
    return told + [[row.program_id, row.attained_s] for row in harness.table], moved


@pytest.mark.parametrize("policy", ["fcfs", "atlas", "adaptive"])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_charged_as_its_calls_are(policy: str, seed: int) -> None:
    whole, moved = play(policy, seed, at_once=True)
    assert (whole, moved) == play(policy, seed, at_once=False)
    assert any(moved) == (policy != "fcfs")
