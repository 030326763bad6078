"""A recording holds all that decisions depend on: taken again, they are the same."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.scheduler import ProgramTotals
from tests.lab.engine.recording import RecordedScheduler, read
from tests.lab.engine.replaying import replay

pytestmark = pytest.mark.engine

EAGER = {"quanta": [4, 8, 16], "min_running_steps": 0, "min_remaining_tokens": 0}


def engine(policy: str = "atlas", in_flight: int = 1, **size: Any) -> HeadlessEngine:
    size = {"max_num_seqs": 3, "blocks": 13, "max_num_batched_tokens": 48, **size}
    scheduler = make_scheduler(
        RecordedScheduler, settings={"policy": policy, "beta": 2.0, **EAGER}, **size
    )
    rng = random.Random(5)
    return HeadlessEngine(
        scheduler,
        in_flight,
        # Times that no line of floats would hit by chance.
        step_s=lambda work: 0.5 + rng.random() if not work.empty else 0.0,
        token=lambda request_id, index: rng.randrange(500),
    )


def control(e: HeadlessEngine, op: str, argument: Any = None) -> Any:
    assert isinstance(e.scheduler, RecordedScheduler)
    return e.scheduler.control(op, argument)


def drive(e: HeadlessEngine, seed: int) -> None:
    """Random arrivals with shared prefixes, aborts, programs that end, an emptied cache."""
    rng = random.Random(seed)
    live: list[str] = []
    for step in range(120):
        for n in range(rng.choice([0, 0, 1, 2])):
            name = f"r{seed}.{step}.{n}"
            prompt = [*range(rng.choice([0, 32, 64])), *rng.choices(range(500), k=30)]
            program = {"program_id": f"p{rng.randrange(6)}", "call_id": name, "report": True}
            e.add(name, prompt, rng.randint(1, 30), {"agentrt": program})
            live.append(name)
        if len(live) > 2 and rng.random() < 0.1:
            e.abort(live.pop(rng.randrange(len(live))))
        if rng.random() < 0.05:
            control(e, "ends", [f"p{rng.randrange(6)}"])
        if rng.random() < 0.05:  # it came to more elsewhere
            name = f"p{rng.randrange(6)}"
            control(e, "ends", [ProgramTotals(name, "t", service_s=rng.random() * 50)])
        ended = e.step().finished
        live = [name for name in live if name not in ended]
    e.run()
    e.scheduler.reset_prefix_cache()


def recorded(e: HeadlessEngine, path: Path, seed: int = 1) -> Path:
    control(e, "record", str(path))
    drive(e, seed)
    control(e, "record", None)
    return path


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "atlas", "adaptive"])
def test_a_recorded_run_is_decided_the_same_again(
    tmp_path: Path, policy: str, in_flight: int
) -> None:
    e = engine(policy, in_flight)
    drive(e, seed=0)  # what came before the recording does not matter
    again = replay(recorded(e, tmp_path / "run.jsonl"))
    assert again.difference is None
    assert again.calls > 60
    assert again.steps > 100
    assert again.preemptions > 0
    assert again.cached_tokens > 0


@pytest.mark.parametrize(
    ("settings", "blocks"), [({"policy": "fcfs"}, None), ({"beta": 100.0}, None), ({}, 12)]
)
def test_another_policy_or_engine_is_found_out(
    tmp_path: Path, settings: dict[str, Any], blocks: int | None
) -> None:
    events = list(read(recorded(engine(), tmp_path / "run.jsonl")))
    if blocks is not None:
        events[0] = {**events[0], "engine": {**events[0]["engine"], "blocks": blocks}}
    difference = replay(events, settings).difference
    assert difference is not None
    assert difference.recorded != difference.replayed
    assert str(difference).startswith(f"step {difference.step}: {difference.what} was ")
