"""Where the time of whole programs went, through an engine and a journal: in virtual time, in which
their code takes none, so that each second belongs to the engine or to a tool.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("vllm")

from agentrt.journal.analysis.wall import TOOL, RecordedTime, read_program
from agentrt.journal.store import SQLiteStore
from agentrt.request.spans import (
    ADMISSION,
    PREEMPTED,
    QUEUED,
    REASONS,
    RECOMPUTE,
    read_spans,
)
from agentrt.scheduler import SchedulerConfig
from tests.lab.virtual_world import QUANTA, record_burst

pytestmark = pytest.mark.engine
CAUSED = (QUEUED, ADMISSION, PREEMPTED, RECOMPUTE)
CONFIGS = [
    SchedulerConfig("fcfs", quanta=QUANTA),
    SchedulerConfig("atlas", quanta=QUANTA, retention="ttl", admission="cap", admission_cap=4),
    SchedulerConfig("adaptive", quanta=QUANTA, retention="cost", admission="memory"),
]


async def programs(path: Path, config: SchedulerConfig, seed: int) -> list[RecordedTime]:
    """What the journal has of a burst of programs."""
    ends = await record_burst(config, path, seed=seed)
    store = SQLiteStore(path)
    found = [read_program(store, name) for name in ends]
    store.close()
    return found


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.policy)
async def test_each_second_of_a_program_has_its_reason(
    config: SchedulerConfig, tmp_path: Path
) -> None:
    seed = CONFIGS.index(config)
    seconds: dict[str, float] = defaultdict(float)
    recorded = await programs(tmp_path / "j", config, seed)
    names = {one.program.id for one in recorded}
    for one in recorded:
        check_wall(one, seconds)
        check_calls(one, names)
    expected = set(CAUSED)
    if config.admission == "off":
        expected.remove(ADMISSION)
    seen = {reason for reason in CAUSED if seconds[reason] > 0}
    if config.policy != "atlas":  # whether the default preempts depends on what it has learned
        expected.remove(PREEMPTED)
        seen.discard(PREEMPTED)
    assert seen == expected


def check_wall(recorded: RecordedTime, seconds: dict[str, float]) -> None:
    """The pieces have no gaps, and sum up to the wall time."""
    pieces = recorded.pieces()
    assert (pieces[0].since, pieces[-1].until) == (recorded.since, recorded.until)
    assert all(one.until == other.since for one, other in pairwise(pieces))
    for piece in pieces:
        seconds[piece.reason] += piece.seconds
    wall = recorded.until - recorded.since
    known = sum(one.seconds for one in pieces if one.reason in (*REASONS, TOOL))
    assert known == pytest.approx(wall, rel=0.01)


def check_calls(recorded: RecordedTime, names: set[str]) -> None:
    """Each wait, preemption and eviction names who caused it; and none is kept quiet."""
    calls = [stay for life in recorded.lives for stay in life.stays if stay.start.kind == "call"]
    assert calls
    for stay in calls:
        report = stay.report
        assert report is not None
        spans = read_spans(report.spans)
        assert sum(one.seconds for one in spans) < stay.until - stay.start.started + 1e-4
        reasons = {one.reason for one in spans}
        assert (PREEMPTED in reasons) == (report.preemptions > 0)
        assert RECOMPUTE in reasons or not report.lost_tokens
        for span in spans:
            assert (len(span.by) > 0) == (span.reason in CAUSED)
            assert {cause.program for cause in span.by} <= names
