"""Our scheduler's outputs have all that model runner V2 reads, also for hybrid models and drafts.

V2 needs a GPU. This module keeps what V2 remembers from step to step, by V2's own rules: a
preempted request is forgotten, and a request that comes back comes like a new one, with all its
tokens.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from agentrt.executors.vllm._compat.pool import (
    all_blocks,
    blocks_needed,
    context_blocks,
    find_cached,
    free_blocks,
)
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.lab.engine.headless import BLOCK_SIZE, stock_scheduler
from tests.executors.vllm.every_kind import EveryKind, KindStorm, every_kind
from tests.executors.vllm.test_stock_equivalence import state

pytestmark = pytest.mark.engine

EAGER = {"quanta": [2, 4, 8], "min_running_steps": 0, "min_remaining_tokens": 0}
_HEADS = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
FULL = FullAttentionSpec(block_size=BLOCK_SIZE, **_HEADS)
WINDOW = SlidingWindowSpec(block_size=BLOCK_SIZE, sliding_window=20, **_HEADS)
MAMBA = MambaSpec(
    block_size=BLOCK_SIZE,
    shapes=((2 * BLOCK_SIZE,),),
    dtypes=(torch.float32,),
    mamba_cache_mode="align",  # as vLLM sets it for a model whose prefixes are cached
)
MODELS: dict[str, tuple[Any, ...]] = {
    "full": (),
    "sliding": (FULL, WINDOW, WINDOW),
    "mamba": (FULL, MAMBA),
}
"""Groups of layers: Gemma's and Mistral's kinds, and Jamba's."""


@dataclass
class Row:
    """A request as the runner knows it: its tokens without those sampled since, and its blocks."""

    prefill: int
    computed: int
    blocks: list[list[int]]


@dataclass
class Runner:
    """What V2 remembers. ``take`` fails where V2 would fail, or would compute something else."""

    scheduler: Any
    rows: dict[str, Row] = field(default_factory=dict)
    outputs: list[SchedulerOutput] = field(default_factory=list)
    preempted: int = 0

    def __post_init__(self) -> None:
        self.scheduler.use_v2_model_runner = True  # the configuration asks for Triton
        made = self.scheduler.schedule

        def schedule() -> SchedulerOutput:
            output: SchedulerOutput = made()
            self.take(output)
            return output

        self.scheduler.schedule = schedule

    def take(self, output: SchedulerOutput) -> None:
        self.outputs.append(output)
        preempted = output.preempted_req_ids or set()
        self.preempted += len(preempted)
        for gone in output.finished_req_ids | preempted:
            self.rows.pop(gone, None)
        for new in output.scheduled_new_reqs:
            assert new.prefill_token_ids is not None
            blocks = [list(group) for group in new.block_ids]
            row = Row(len(new.prefill_token_ids), new.num_computed_tokens, blocks)
            self.rows[new.req_id] = row
        cached = output.scheduled_cached_reqs
        assert not cached.resumed_req_ids
        each = zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True)
        for name, computed, more in each:
            row = self.rows[name]
            row.computed = computed
            for group, ids in zip(row.blocks, more or (), strict=bool(more)):
                group.extend(ids)
        assert len(self.rows) <= self.scheduler.max_num_running_reqs
        new_names = {new.req_id for new in output.scheduled_new_reqs}
        for name, count in output.num_scheduled_tokens.items():
            self._check(name, count, is_new=name in new_names)

    def _check(self, name: str, count: int, *, is_new: bool) -> None:
        request, row = self.scheduler.requests[name], self.rows[name]
        assert row.computed + count == request.num_computed_tokens
        if is_new:
            assert row.prefill == request.num_tokens
        if is_new and not request.resumable:  # no token of it is still to come in
            assert request.num_in_flight_tokens == count
        held = self.scheduler.kv_cache_manager.get_block_ids(name)
        for group, known in zip(held, row.blocks, strict=True):
            # What fell out of a window, or was a state before, is block 0, which nobody reads.
            assert len(known) == len(group)
            assert all(mine in (0, its) for mine, its in zip(group, known, strict=True))


def engine(cls: Any, model: str, in_flight: int, drafts: int, **settings: Any) -> EveryKind:
    more: dict[str, Any] = {"kinds": MODELS[model], "settings": {**EAGER, **settings}}
    made = every_kind(cls, random.Random(2 - in_flight), connector=None, drafts=drafts, **more)
    assert made.in_flight == in_flight
    return made


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("drafts", [0, 2])
def test_fcfs_tells_the_runner_what_stock_does(drafts: int, in_flight: int, model: str) -> None:
    """Each field of each output is the same, over the same storm."""
    theirs = engine(stock_scheduler(), model, in_flight, drafts)
    mine = engine(ProgramScheduler, model, in_flight, drafts, policy="fcfs", retention="lru")
    stock, ours = Runner(theirs.scheduler), Runner(mine.scheduler)
    storms = KindStorm(theirs, 0), KindStorm(mine, 0)
    for _ in range(60):
        for storm in storms:
            storm.act()
        assert state(theirs) == state(mine)
    for storm in storms:
        storm.settle()
    assert [vars(one) for one in stock.outputs] == [vars(one) for one in ours.outputs]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize(
    "settings", [{}, {"policy": "plas", "quanta": [0.5, 1, 2]}], ids=["default", "plas"]
)
def test_the_runner_follows_whoever_is_preempted(
    settings: dict[str, Any], drafts: int, in_flight: int, model: str
) -> None:
    made = engine(ProgramScheduler, model, in_flight, drafts, **settings)
    runner = Runner(made.scheduler)
    blocks = made.scheduler.control("snapshot")["free_blocks"]
    for seed in range(1, 9):
        storm = KindStorm(made, seed)
        for _ in range(80):
            storm.act()
        storm.settle()
        if runner.preempted or not settings:
            break
    assert runner.preempted or not settings
    assert not made.scheduler.requests
    assert made.scheduler.control("snapshot")["free_blocks"] == blocks


def test_all_of_a_hybrid_models_context_is_found_that_its_layers_keep() -> None:
    """Of a sliding window only the end is kept; the other layers keep everything."""
    made = engine(ProgramScheduler, "sliding", 1, 0)
    made.add("plain", list(range(5 * BLOCK_SIZE)), 2)
    request = made.requests["plain"]
    made.run()
    for nth, blocks in enumerate((9, 5)):  # the last takes what windows have left behind
        made.add(f"plain-{nth}", [9 + nth] * (blocks * BLOCK_SIZE), 2)
        made.run()
    found = find_cached(made.scheduler, request.block_hashes)
    assert len(request.block_hashes) == 5
    assert 5 < len(found) < 3 * 5


def test_tokens_that_fell_out_of_a_window_need_no_blocks() -> None:
    """A prompt that is cached needs as many blocks as vLLM then takes."""
    made = engine(ProgramScheduler, "sliding", 1, 0)
    scheduler, prompt = made.scheduler, list(range(5 * BLOCK_SIZE - 1))
    made.add("plain", prompt, 2)
    made.run()
    free = free_blocks(scheduler)
    made.add("plain-again", prompt, 2)
    needed = blocks_needed(scheduler, made.requests["plain-again"], 0)
    made.step()
    assert free - free_blocks(scheduler) == needed


@pytest.mark.parametrize(("model", "blocks"), [("sliding", 20), ("full", None)])
def test_a_hybrid_models_memory_is_as_large_as_vllm_says(model: str, blocks: int | None) -> None:
    """A context holds blocks of every kind, so fewer contexts fit than the blocks suggest."""
    scheduler = engine(ProgramScheduler, model, 1, 0).scheduler
    assert context_blocks(scheduler) == all_blocks(scheduler), "vLLM has not said"
    scheduler.cache_config.kv_cache_size_tokens = 20 * BLOCK_SIZE + 3
    assert context_blocks(scheduler) == (blocks or all_blocks(scheduler))


@pytest.mark.parametrize("drafts", [0, 2])
def test_drafts_do_not_pass_for_prompt_tokens(drafts: int) -> None:
    """A prompt token's cost is learned from steps with prompts, with drafts as well as without."""
    made = engine(ProgramScheduler, "full", 2, drafts, admission="memory")
    made.step_s = lambda work: 1.0 if work.prefill_tokens <= 2 * drafts else 5.0
    for nth in range(8):
        made.add(f"plain-{nth}", [100 + nth] * 40, 20)
        made.run()
    learned = made.scheduler.core.learned
    assert learned.costs.token_s == pytest.approx(4.0 / 39, rel=0.05)
