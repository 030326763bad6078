"""A recorded burst, replayed: decisions as recorded under its policy, and under another one as a
recording of that has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from agentrt.journal.journal import Content
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.program import LiveProgram
from agentrt.lab.runs.grid import Setting, Source, grid
from agentrt.lab.runs.replays import Replayed, policies, replay, same_order
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.journals import Recording, read_recording
from agentrt.request import CallReport
from agentrt.scheduler import SchedulerConfig
from tests.lab.virtual_world import ADAPTIVE, ATLAS, FCFS, MACHINE, TIMES, record_burst

pytestmark = pytest.mark.engine


DECIDED = (
    *("arrived_step", "finished_step", "steps", "preemptions", "demotions"),
    *("prompt_tokens", "output_tokens", "cached_tokens", "recomputed_tokens"),
)


async def recorded(config: SchedulerConfig, path: Path, content: Content = "full") -> Recording:
    ends = await record_burst(config, path, content)
    recording = read_recording(path)
    assert [one.program_id for one in recording.outcomes] == ends
    return recording


def replayed(path: Path, *names: str) -> list[Replayed]:
    everyone = policies(read_recording(path), names)
    setting = Setting(Source("burst", path), Pressure("recorded"))
    return [replay(spec) for spec in grid([setting], everyone, [0], MACHINE)]


class Watched(Virtual):
    """Keeps what the engine said of each call."""

    def __init__(self, config: SchedulerConfig, options: VirtualOptions) -> None:
        super().__init__(config, options, TIMES)
        self.reports: dict[str, dict[int, CallReport]] = {}

    def call_ended(self, live: LiveProgram, index: int, report: CallReport) -> None:
        self.reports.setdefault(live.row.program_id, {})[index] = report
        super().call_ended(live, index, report)


def accounts(recording: Recording) -> dict[str, dict[int, CallReport]]:
    """What the recorded engine said of each call."""
    known = {field.name for field in fields(CallReport)}
    found: dict[str, dict[int, CallReport]] = {}
    for call in recording.calls:
        said = {name: value for name, value in call.account.items() if name in known}
        calls = found.setdefault(call.program, {})
        calls[len(calls)] = CallReport(**said)
    return found


def decisions(reports: dict[str, dict[int, CallReport]]) -> dict[str, Sequence[tuple[int, ...]]]:
    return {
        program: [tuple(getattr(one, name) for name in DECIDED) for _, one in sorted(calls.items())]
        for program, calls in reports.items()
    }


@pytest.mark.parametrize("config", [FCFS, ATLAS, ADAPTIVE], ids=lambda config: config.policy)
async def test_under_the_recorded_policy_all_is_as_recorded(
    config: SchedulerConfig, tmp_path: Path
) -> None:
    """Each call in the same steps, with as much in the cache, as often preempted; and so each
    program with the same latency.
    """
    recording = await recorded(config, tmp_path / "j")
    engine = Watched(config, MACHINE.virtual_options())
    drive(engine, recording.programs)
    assert decisions(engine.reports) == decisions(accounts(recording))
    cached = sum(call.account.get("cached_tokens", 0) for call in recording.calls)
    assert cached > 20_000
    assert config is FCFS or sum(one.preemptions for one in recording.outcomes) > 2
    [again] = replayed(tmp_path / "j")
    assert again.spec.contender.config == config
    assert ends(again.outcomes) == pytest.approx(ends(recording.outcomes), abs=1e-6)
    assert same_order(recording.outcomes, again.outcomes) == 1.0


async def test_under_another_policy_all_is_as_that_one_has_it(tmp_path: Path) -> None:
    """What a recording under fcfs becomes under ATLAS and adaptive is what they themselves do."""
    first = await recorded(FCFS, tmp_path / "fcfs")
    _, *found = replayed(tmp_path / "fcfs", "atlas", "adaptive+cost+memory")
    for config, again in zip((ATLAS, ADAPTIVE), found, strict=True):
        own = await recorded(config, tmp_path / config.policy)
        assert ends(again.outcomes) == pytest.approx(ends(own.outcomes), abs=1e-6)
        assert same_order(own.outcomes, again.outcomes) == 1.0
        assert same_order(first.outcomes, again.outcomes) < 1.0


def ends(outcomes: Sequence[Any]) -> dict[str, float]:
    return {one.program_id: one.latency_s for one in outcomes}
