"""Host memory in virtual time: vLLM's connector decides, and copies take time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.kv_offload.base import GPULoadStoreSpec, ReqContext
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.request import RequestStatus

from agentrt.errors import ConfigError
from agentrt.executors.vllm._compat.offloading import keys_of
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.options import HOST_TIER
from agentrt.lab.engine.headless import make_request, make_scheduler, stock_scheduler
from agentrt.lab.engine.host import HostEngine, Link, transfer_config, with_host
from agentrt.lab.engine.host_memory import HostMemory
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import contender
from agentrt.lab.workloads.shape import CallShape, ProgramShape
from agentrt.scheduler.config import SchedulerConfig

pytestmark = pytest.mark.engine

BLOCK = 16
OPTIONS = VirtualOptions(
    max_num_seqs=4, kv_blocks=40, max_num_batched_tokens=128, max_model_len=600
)
TIMES = StepTimeModel(0.01, 1e-3, 0.0, 0.0)
FAST = HostMemory(4.0, token_s=1e-6, latency_s=0.0, load_step_s=0.0, store_step_s=0.0)
SLOW = HostMemory(4.0, token_s=0.01, latency_s=0.0, load_step_s=0.0, store_step_s=0.0)


def away(name: str, arrives_s: float, gap_s: float = 5.0) -> ProgramShape:
    """A program of two calls over a context of 400 tokens, of which the engine holds one alone."""
    calls = CallShape(8, 400), CallShape(8, 420, after=(0,), extends=0, gap_s=gap_s)
    return ProgramShape(name, "away", calls, arrives_s)


TWO = [away("first", 0.0), away("second", 2.0)]


def run(name: str, memory: HostMemory | None = None, programs: Any = TWO) -> RunOutcome:
    rule = contender(name)
    return replace(rule, host=memory or rule.host).run(programs, OPTIONS, TIMES)


def finish_s(ran: RunOutcome) -> list[float]:
    return [entry.latency_s for entry in ran.outcomes]


@pytest.mark.parametrize("name", ["stock", "default"])
def test_a_context_that_the_gpu_evicted_is_loaded_and_not_computed_again(name: str) -> None:
    without, with_host_memory = run(name), run(f"{name}+offload", FAST)
    assert without.counts.loaded_tokens == without.counts.stored_tokens == 0
    assert with_host_memory.counts.stored_tokens >= 2 * 400
    assert with_host_memory.counts.loaded_tokens >= 384
    computed = [ran.counts.usage.uncached_tokens for ran in (without, with_host_memory)]
    assert computed[1] <= computed[0] - 384
    assert max(finish_s(with_host_memory)) < max(finish_s(without)) - 384 * 1e-3 / 2


def test_a_load_takes_the_time_of_the_link() -> None:
    fast, slow = (max(finish_s(run("stock+offload", memory))) for memory in (FAST, SLOW))
    assert slow > fast + 384 * 0.01 * 0.9
    late = replace(FAST, latency_s=0.5)
    assert max(finish_s(run("stock+offload", late))) == pytest.approx(fast + 0.5, abs=0.05)


def test_a_copied_token_lengthens_the_step_in_which_its_copy_begins() -> None:
    """A single program never loads, so storing its tokens is the whole difference."""
    alone = [away("alone", 0.0)]
    free, costly = (
        run("stock+offload", replace(FAST, store_step_s=cost), alone) for cost in (0.0, 1e-3)
    )
    assert free.counts.loaded_tokens == costly.counts.loaded_tokens == 0
    assert 0 < free.counts.stored_tokens == costly.counts.stored_tokens
    took = max(finish_s(costly)) - max(finish_s(free))
    assert 0.4 <= took <= free.counts.stored_tokens * 1e-3 + 1e-6


def test_a_loaded_token_costs_its_own_share_of_the_step() -> None:
    link = Link(replace(SLOW, load_step_s=0.5, store_step_s=0.25), block_size=2)
    link.submit_load(1, CPULoadStoreSpec([0, 1, 2]), gpu_blocks(3))
    assert link.take_step_s() == 3.0
    link.submit_store(2, gpu_blocks(2), CPULoadStoreSpec([0, 1]))
    assert link.take_step_s() == 1.0
    assert link.take_step_s() == 0.0


def gpu_blocks(count: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(list(range(1, count + 1)), group_sizes=[count], block_indices=[0])


def test_copies_of_one_direction_share_the_link_and_the_other_direction_is_free() -> None:
    link = Link(HostMemory(1.0, token_s=0.5, latency_s=1.0), block_size=2)
    host = CPULoadStoreSpec([0, 1])
    link.submit_load(1, host, gpu_blocks(2))
    link.submit_load(2, host, gpu_blocks(2))
    link.submit_store(3, gpu_blocks(2), host)
    ends = []
    while (end := link.next_end) is not None:
        link.now = end
        ends += [(end, result.job_id) for result in link.get_finished()]
    assert ends == [(3.0, 1), (3.0, 3), (5.0, 2)]
    link.now = 10.0
    link.submit_load(4, host, gpu_blocks(1))
    assert link.next_end == 12.0


def test_waiting_for_copies_moves_the_clock_and_is_counted() -> None:
    link = Link(HostMemory(1.0, token_s=1.0, latency_s=0.0), block_size=1, now=4.0)
    link.submit_store(1, gpu_blocks(3), CPULoadStoreSpec([0, 1, 2]))
    link.submit_store(2, gpu_blocks(3), CPULoadStoreSpec([3, 4, 5]))
    link.wait({1, 99})
    assert (link.now, link.waited_s) == (7.0, 3.0)
    assert [result.job_id for result in link.get_finished()] == [1]
    link.wait({1})
    assert (link.now, link.waited_s) == (7.0, 3.0)


# -- the engine itself ----------------------------------------------------------------------


def engine(scheduler: str, memory: HostMemory, host_blocks: int) -> HostEngine:
    cls: Any = stock_scheduler() if scheduler == "stock" else ProgramScheduler
    how: dict[str, Any] = {} if scheduler == "stock" else {"settings": SchedulerConfig().to_dict()}
    extra = {} if scheduler == "stock" else HOST_TIER
    made = make_scheduler(
        cls,
        max_num_seqs=4,
        blocks=40,
        max_model_len=600,
        max_num_batched_tokens=128,
        vllm={"kv_transfer_config": transfer_config(host_blocks, extra)},
        **how,
    )
    return with_host(made, memory, step_s=TIMES.seconds)


def text(name: str, count: int) -> list[int]:
    first = 1000 * (1 + sum(map(ord, name)))
    return list(range(first, first + count))


def serve(virtual: HostEngine, name: str, prompt: list[int]) -> float:
    """Run one call to its end, and return its seconds."""
    began = virtual.now
    virtual.add(name, prompt, 2)
    virtual.run(1000)
    virtual.settle()
    return virtual.now - began


def free_blocks(virtual: HostEngine) -> int:
    return virtual.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()


def held_on_host(virtual: HostEngine) -> int:
    """Chunks of host memory that a copy still needs."""
    virtual.now += 1000.0
    virtual.link.now = virtual.now
    virtual.settle()
    connector: Any = virtual.scheduler.connector
    manager = connector.connector_scheduler.manager
    free = manager._get_num_free_chunks() + manager._num_evictable_cache_chunks
    return int(manager._num_chunks - free)


BOTH = pytest.mark.parametrize("scheduler", ["stock", "agentrt"])


@BOTH
def test_a_full_host_memory_evicts_its_oldest_context(scheduler: str) -> None:
    virtual = engine(scheduler, FAST, host_blocks=60)
    names = ["a", "b", "c"]
    for name in names:
        serve(virtual, name, text(name, 500))
    loaded = virtual.link.copies["load"]
    serve(virtual, "a again", text("a", 500))
    assert loaded.blocks == 0, "the oldest context was still there"
    serve(virtual, "c again", text("c", 500))
    assert loaded.blocks >= 15
    assert held_on_host(virtual) == 0


@BOTH
@pytest.mark.parametrize("loading", [True, False])
def test_a_call_that_is_aborted_during_a_load_leaks_no_block(scheduler: str, loading: bool) -> None:
    virtual = engine(scheduler, SLOW, host_blocks=160)
    for name in ("a", "b"):
        serve(virtual, name, text(name, 500))
    empty = free_blocks(virtual)
    virtual.add("a again", text("a", 500), 2)
    virtual._polls = False  # each step without calls takes no time, so that the load stays open
    for _ in range(3):
        virtual.step()
    request = virtual.requests["a again"]
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    assert free_blocks(virtual) < empty
    virtual._polls = True
    if not loading:
        virtual.step()  # the load has ended, and the call is not scheduled yet
    virtual.abort("a again")
    assert held_on_host(virtual) == 0
    assert free_blocks(virtual) == empty
    before = virtual.link.copies["load"].blocks
    assert serve(virtual, "a at last", text("a", 500)) < 1000
    assert virtual.link.copies["load"].blocks > before
    assert free_blocks(virtual) == empty


@BOTH
def test_a_block_is_not_overwritten_before_its_copy_has_ended(scheduler: str) -> None:
    virtual = engine(scheduler, SLOW, host_blocks=160)
    for name in ("a", "b"):
        virtual.add(name, text(name, 500), 2)
        virtual.run(1000)
    assert virtual.link.waited_s > 0
    assert virtual.now > 500 * SLOW.token_s


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_host_memory_without_a_size_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="times the KV cache; give a finite multiple above 0"):
        HostMemory(value)


@pytest.mark.parametrize("field", ["token_s", "latency_s", "load_step_s", "store_step_s"])
@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_copies_with_impossible_times_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match="must be finite and at least 0 seconds"):
        HostMemory(1.0, **{field: value})


def test_a_contender_names_its_host_memory() -> None:
    sized = contender("default+offload:4").sized(OPTIONS).host
    assert sized is not None
    assert sized.blocks(40) == 160
    usual = contender("stock+offload").sized(OPTIONS).host
    assert usual is not None
    assert usual.blocks(40) == 80
    assert contender("stock").sized(OPTIONS).host is None
    assert not contender("stock+offload").on_engines


@pytest.mark.parametrize("suffix", ["offload:", "offload:x", "offload:0", "offload:-1", "offloads"])
def test_a_contender_with_a_wrong_host_memory_is_refused(suffix: str) -> None:
    with pytest.raises(ConfigError):
        contender(f"stock+{suffix}")


def test_each_turn_of_a_session_stores_its_own_blocks() -> None:
    """Stock's connector appends all blocks of a session once more at each turn."""
    virtual = engine("agentrt", FAST, host_blocks=160)
    connector: Any = virtual.scheduler.connector
    block = virtual.scheduler.block_size
    inputs = [text("s", block - 2), text("t", block), text("u", 2 * block)]
    for prompt in inputs:  # at the end of the first turn, the last token fills a block
        virtual.submit(
            make_request("s", prompt, block, resumable=True, max_tokens=2, ignore_eos=True)
        )
        virtual.run(1000)
        session = virtual.requests["s"]
        (group,) = connector.connector_scheduler._req_status["s"].group_states
        (blocks,) = virtual.scheduler.kv_cache_manager.get_block_ids("s")
        assert group.block_ids == blocks
        keys = keys_of(virtual.scheduler, session.block_hashes)
        assert group.offload_keys == keys[: len(group.offload_keys)]
    stored = keys_of(
        virtual.scheduler, session.block_hashes[: session.num_computed_tokens // block]
    )
    lookup = ReqContext("other")
    manager = connector.connector_scheduler.manager
    virtual.settle()
    assert all(manager.lookup(key, lookup) for key in stored)
