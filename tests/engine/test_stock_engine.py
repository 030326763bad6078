"""Real engines with vLLM's own scheduler and with ours: same work, one instrument.

The model has the shape `tiny`, and its weights are made up. Nothing looks at a wall clock.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentrt.engines import EngineOptions
from agentrt.errors import CallRejectedError, ConfigError
from agentrt.lab.engine.engines import LabEngine, StockEngine
from agentrt.lab.runs.contenders import contenders
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.replay import Scales
from agentrt.request import Call, CallSpec, Identity
from agentrt.scheduler import SchedulerConfig
from benchmarks.policies.real import RealBench
from benchmarks.shapes import FLAGS, shape_folder
from benchmarks.summaries import FullSummary
from benchmarks.workloads.source import Cut, WorkloadSource

pytest.importorskip("vllm")
pytestmark = pytest.mark.engine

ENGINE = EngineOptions(shape_folder("tiny"), 2, flags=(*FLAGS, "--max-model-len", "512"))
SOURCE = WorkloadSource("lats", scales=Scales(0.2, 0.1, 0.0), cut=Cut(calls=12))
RESTLESS = SchedulerConfig(
    policy="atlas", quanta=(0.001, 0.01), min_running_steps=0, min_remaining_tokens=0
)


async def test_stock_and_ours_do_the_same_work_under_one_probe() -> None:
    """1. vLLM's priority policy. 2. Our scheduler. Each with four programs on two slots."""
    opened: list[LabEngine] = []

    @asynccontextmanager
    async def started(engine: LabEngine) -> AsyncIterator[None]:
        await engine.start(lambda message: None)
        opened.append(engine)
        try:
            await look(engine)
            yield
        finally:
            await engine.close()

    path, atlas = contenders(["priority-path", "atlas"], RESTLESS)
    told: list[str] = []
    bench = RealBench(
        ENGINE,
        SOURCE,
        [Pressure("at-once")],
        4,
        [path, atlas],
        [0],
        started,
        lambda done, what: told.append(what),
    )
    await bench.run()
    assert [type(engine) for engine in opened] == [StockEngine, LabEngine]
    assert [result.spec.contender.name for result in bench.results] == ["priority-path", "atlas"]
    stock, ours = (result.summary for result in bench.results)
    assert (stock.programs, ours.programs) == (4, 4)
    assert stock.preemptions == 0, "memory is ample, and vLLM preempts for nothing else"
    assert ours.preemptions > 0
    for one in (stock, ours):
        assert 0 < one.waiting_share < 1
        assert isinstance(one, FullSummary)
        assert one.mean_steps is not None
        assert one.mean_steps > 20, "twelve calls, two at a time, take their steps"
        assert one.cpu_us is not None
        assert one.cpu_us > 0
        assert one.prefix_hit_share is not None
        assert one.prefix_hit_share > 0.2, "calls extend each other's prompts"
    assert told[1].endswith("priority-path")


async def look(engine: LabEngine) -> None:
    """What the engine is, and what it refuses."""
    config = engine._engine().vllm_config.scheduler_config
    if isinstance(engine, StockEngine):
        assert config.policy == "priority"
        from vllm.v1.core.sched import async_scheduler, scheduler

        assert config.get_scheduler_cls() in (async_scheduler.AsyncScheduler, scheduler.Scheduler)
        with pytest.raises(ConfigError, match="has no agentrt settings"):
            await engine.configure(SchedulerConfig())
    sizes = engine.sizes()
    assert (sizes["max_num_seqs"], sizes["max_model_len"]) == (2, 512)
    assert sizes["kv_blocks"] > 0
    with pytest.raises(CallRejectedError, match="has no tokenizer"):
        async for _ in engine.generate(Call(Identity("a", "a", "t"), CallSpec()), stream=False):
            pass
