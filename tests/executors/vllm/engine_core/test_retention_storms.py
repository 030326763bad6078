"""Retention and admission can neither deadlock nor leak: random programs over a tiny cache.

`AGENTRT_STORMS=10000 pytest tests/executors/vllm/engine_core/test_retention_storms.py` tries ten
thousand schedules, in some minutes; without it twenty of each setting are tried.
"""

from __future__ import annotations

import itertools
import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrt.executors.vllm.engine_core import scheduler as scheduler_module
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_scheduler
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.table import ProgramTotals
from tests.executors.vllm.storms import PATIENCE_S, Storm, check_free_queue
from tests.scheduler.admitting import held
from tests.scheduler.integrity import check_queues

pytestmark = pytest.mark.engine

SCHEDULES = int(os.environ.get("AGENTRT_STORMS", "240"))
_PER_ENGINE = 20
"""Schedules that one engine goes through, so that what leaks adds up."""
_ACTS = 40
POLICIES = (("fcfs", "off"), ("atlas", "off"), ("adaptive", "memory"))
"""And the admission beside each."""
SETTINGS = list(itertools.product(("cost", "ttl"), POLICIES, (1, 2)))


def engine(retention: str, policy: tuple[str, str], in_flight: int, blocks: int) -> HeadlessEngine:
    settings: dict[str, Any] = {
        "policy": policy[0],
        "admission": policy[1],
        "quanta": [4, 8],
        "retention": retention,
        "retention_ttl": 20.0,
        "stale_after_s": PATIENCE_S,
        "min_running_steps": 0,
    }
    scheduler = make_scheduler(
        ProgramScheduler, max_num_seqs=3, blocks=blocks, settings=settings, max_model_len=160
    )
    return HeadlessEngine(scheduler, in_flight)


def check(engine: HeadlessEngine) -> None:
    """Check that each block is counted exactly once, and that what is known of programs is true."""
    scheduler = engine.scheduler
    assert isinstance(scheduler, ProgramScheduler)
    queue = scheduler.retention.queue
    assert queue is not None
    check_free_queue(queue)
    scheduler.table.check_integrity()
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    used = sum(block.ref_cnt > 0 and not block.is_null for block in pool.blocks)
    assert used + pool.get_num_free_blocks() == len(pool.blocks) - 1
    assert len(pool.free_block_queue.get_all_free_blocks()) == pool.get_num_free_blocks()
    for request in scheduler.running:
        (blocks,) = manager.get_block_ids(request.request_id)
        assert len(blocks) * BLOCK_SIZE >= request.num_computed_tokens
    check_queues(scheduler.core)
    for owner in queue.order.in_order(engine.now):
        assert all(row in list(scheduler.table) for row in owner.rows)
        assert all(row.cached is owner for row in owner.rows)


def blow(engine: HeadlessEngine, seed: int, acts: int = _ACTS) -> None:
    """Run one storm to its end. Then no block is in use, and only what may return is protected."""
    scheduler = engine.scheduler
    assert isinstance(scheduler, ProgramScheduler)
    pool = scheduler.kv_cache_manager.block_pool
    storm = Storm(engine, seed, min(159, BLOCK_SIZE * (len(pool.blocks) - 1)), alone=False)
    for _ in range(acts):
        storm.act()
        check(engine)
    storm.settle()
    check(engine)
    assert pool.get_num_free_blocks() == len(pool.blocks) - 1
    storm.end_all()
    check(engine)


def forget(engine: HeadlessEngine) -> None:
    """Give up all silent programs. Then nothing is known of any program."""
    scheduler = engine.scheduler
    assert isinstance(scheduler, ProgramScheduler)
    for row in scheduler.table:
        scheduler.end_program(ProgramTotals.of(row), engine.now)
    if isinstance(scheduler.core.admission, WorkingSet):
        working = scheduler.core.admission
        assert (len(working.residents), working.claimed, held(working)) == (0, 0, 0)
    queue = scheduler.retention.queue
    assert queue is not None
    check(engine)
    assert all(one.shared or one.session for one in queue.order.in_order(engine.now))
    assert scheduler.reset_prefix_cache()
    check(engine)
    assert not [*queue.order.in_order(queue.now)]


@pytest.mark.parametrize("nth", range(-(-SCHEDULES // _PER_ENGINE)))
def test_every_call_finishes_and_no_block_is_lost(
    nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "_STALE_CHECK_STEPS", 8)
    rng = random.Random(nth)
    storm = engine(*SETTINGS[nth % len(SETTINGS)], blocks=rng.randint(5, 24))
    for seed in range(_PER_ENGINE):
        blow(storm, nth * _PER_ENGINE + seed)
    forget(storm)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SETTINGS), st.integers(4, 20), st.integers(0, 2**31), st.integers(1, 120))
def test_the_smallest_storm_that_breaks_it_would_be_shown(
    setting: tuple[str, tuple[str, str], int], blocks: int, seed: int, acts: int
) -> None:
    storm = engine(*setting, blocks=blocks)
    blow(storm, seed, acts)
    forget(storm)
