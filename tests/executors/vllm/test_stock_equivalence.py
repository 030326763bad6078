"""With policy ``fcfs`` and retention ``lru``, our scheduler decides as vLLM's own scheduler does.

Both go through the same random programs side by side. After every act they have the same batch in
the same order, and the same blocks of each call, contents of each block, and order of free blocks.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    HeadlessEngine,
    make_scheduler,
    stock_scheduler,
)
from tests.executors.vllm.storms import Storm

pytestmark = pytest.mark.engine

SCHEDULES = int(os.environ.get("AGENTRT_EQUIVALENCE", "200"))
_PER_ENGINE = 20
_ACTS = 30


def pair(rng: random.Random) -> tuple[HeadlessEngine, HeadlessEngine]:
    """Return vLLM's engine and ours, of the same size."""
    size: dict[str, Any] = {
        "max_num_seqs": rng.randint(1, 4),
        "blocks": rng.randint(6, 24),
        "max_model_len": 160,
        "max_num_batched_tokens": rng.choice((64, 2048)),
    }
    in_flight = rng.choice((1, 2))
    settings = {"policy": "fcfs", "retention": "lru"}
    return (
        HeadlessEngine(make_scheduler(stock_scheduler(), **size), in_flight),
        HeadlessEngine(make_scheduler(ProgramScheduler, **size, settings=settings), in_flight),
    )


def state(engine: HeadlessEngine) -> dict[str, Any]:
    """Return all that a scheduler has decided, as it is now."""
    scheduler = engine.scheduler
    manager = scheduler.kv_cache_manager
    return {
        "free": [b.block_id for b in manager.block_pool.free_block_queue.get_all_free_blocks()],
        "cached": [block.block_hash for block in manager.block_pool.blocks],
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "calls": {
            name: (
                manager.get_block_ids(name),
                request.num_computed_tokens,
                request.num_preemptions,
                str(request.status),
            )
            for name, request in scheduler.requests.items()
        },
    }


def steps(storm: Storm) -> list[tuple[list[tuple[str, int]], list[str]]]:
    """Return what each step held, in its order, and which calls ended in it."""
    return [(list(step.scheduled.items()), step.finished) for step in storm.steps]


@pytest.mark.parametrize("nth", range(-(-SCHEDULES // _PER_ENGINE)))
def test_fcfs_with_lru_is_stock_vllm(nth: int) -> None:
    rng = random.Random(nth)
    stock, ours = pair(rng)
    most = BLOCK_SIZE * (len(stock.scheduler.kv_cache_manager.block_pool.blocks) - 1)
    most = min(most, 159)
    for seed in range(nth * _PER_ENGINE, (nth + 1) * _PER_ENGINE):
        theirs = Storm(stock, seed, most, alone=True)
        mine = Storm(ours, seed, most, alone=False)
        for _ in range(_ACTS):
            theirs.act()
            mine.act()
            assert state(stock) == state(ours)
        theirs.settle()
        mine.settle()
        mine.end_all()
        assert steps(theirs) == steps(mine)
        assert state(stock) == state(ours)
