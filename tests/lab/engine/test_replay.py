"""A recording holds all that decisions depend on: taken again, they are the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.lab.engine.headless import HeadlessEngine, make_scheduler
from agentrt.lab.engine.probe import Probe
from agentrt.scheduler import ProgramTotals
from tests.lab.engine.recording import RecordedScheduler, Recorder, read
from tests.lab.engine.replaying import replay

pytestmark = pytest.mark.engine

EAGER = {"quanta": [4, 8, 16], "min_residency_steps": 0, "min_remaining_tokens": 0}


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
@pytest.mark.parametrize("policy", ["fcfs", "mlfq", "plas", "atlas", "adaptive"])
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


def test_any_change_of_a_decision_is_found() -> None:
    """One call's tokens are one more in one step of the recording."""
    events: list[dict[str, Any]] = []
    e = engine()
    assert isinstance(e.scheduler, RecordedScheduler)
    Recorder(e.scheduler, lambda event: events.append(json.loads(json.dumps(event)))).attach()
    drive(e, 3)
    assert replay(events).difference is None
    changed = next(event for event in events if event.get("step") == 40)
    name = next(iter(changed["scheduled"]))
    changed["scheduled"][name] += 1
    found = replay(events).difference
    assert found is not None
    assert (found.step, found.what) == (40, "scheduled")


def test_recording_costs_nothing_when_off_and_leaves_nothing_behind(tmp_path: Path) -> None:
    e = engine()
    before = dict(vars(e.scheduler))
    recorded(e, tmp_path / "run.jsonl")
    assert set(vars(e.scheduler)) == set(before)
    assert vars(e.scheduler)["clock"] is before["clock"]


def test_recording_begins_anew_and_not_in_the_midst_of_calls(tmp_path: Path) -> None:
    e = engine()
    e.add("r", [1, 2, 3], 5)
    with pytest.raises(ConfigError, match="1 calls are unfinished"):
        control(e, "record", str(tmp_path / "run.jsonl"))
    e.run()
    with pytest.raises(ConfigError, match="cannot be written: No such file"):
        control(e, "record", str(tmp_path / "no" / "run.jsonl"))
    assert control(e, "record", None) == {"events": 0, "steps": 0}
    control(e, "record", str(tmp_path / "run.jsonl"))
    e.add("s", [1, 2, 3], 5)
    e.run()
    assert control(e, "record", None) == {"events": 13, "steps": 5}


def test_samples_are_what_each_step_computed_and_took() -> None:
    e = engine()
    e.step_s = lambda work: 1.0 + work.context_tokens / 1024
    probe = Probe(e.scheduler, lambda: e.now, keep_steps=True)
    probe.attach()
    e.add("r", list(range(60)), 3)
    e.run()
    found = probe.result()["samples"]
    assert [one[:3] for one in found] == [(48, 0, 48), (12, 0, 60), (0, 1, 61), (0, 1, 62)]
    assert [one[3] for one in found] == [1.0 + context / 1024 for _, _, context, _ in found]


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    events = list(read(recorded(engine(), tmp_path / "run.jsonl")))
    at = next(i for i, event in enumerate(events) if event["event"] == "add")
    events[at] = {**events[at], "cannot": "it is magic"}
    with pytest.raises(ConfigError, match=r"call r1\..* cannot be replayed: it is magic"):
        replay(events)


@pytest.mark.parametrize("text", ["", "no json", '{"event": "start", "format": 99}\n', "[]\n"])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.jsonl' is no recording"):
        replay(path)
