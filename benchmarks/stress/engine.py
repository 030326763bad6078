"""vLLM's real scheduler and KV manager over an imaginary model that serves all kinds of
requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from vllm.config import KVTransferConfig, SpeculativeConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput

from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    HeadlessEngine,
    StepDecisions,
    base_config,
    complete,
    make_scheduler,
)
from agentrt.lab.engine.step_time import StepWork
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.stress.connector import Elsewhere, Load
from benchmarks.stress.host import HostSide, host_config, host_side
from benchmarks.stress.plans import LAYERS, WINDOW, EnginePlan
from benchmarks.stress.runner import ModelRunner

STALL_S = 60.0
_ARRIVES, _FAILS = 0.3, 0.3
"""The probability that a transfer ends in a step, and the probability that an ended load has
failed.
"""
_WINDOWS: dict[str, tuple[int | None, ...]] = {
    "full": (0,),
    "sliding": (WINDOW,),
    "hybrid": (0, WINDOW, WINDOW),
    "mamba": (0, None),
}
"""The groups of layers for each kind of KV cache. The value of a group is the number of tokens of
context that its layers attend to: 0 for all tokens, None for layers that have a state instead of a
context.
"""


class StressEngine(HeadlessEngine):
    """The engine of a plan. ``deliver`` is a function that is called with each output for a
    client. ``watch`` is a function that is called with each scheduled step.
    """

    def __init__(self, scheduler: Any, plan: EnginePlan, seed: int) -> None:
        super().__init__(scheduler, plan.in_flight, self._seconds)
        self.plan = plan
        self.runner = ModelRunner(plan.blocks, BLOCK_SIZE, _WINDOWS[plan.layers])
        self.steps = 0
        self.computed_tokens = 0
        self.deliver: Callable[[Any], None] = lambda output: None
        self.watch: Callable[[Any], None] = lambda output: None
        self._rng = random.Random(f"transfers {seed}")
        self._settled: dict[int, int] = {}
        self._coming: dict[str, Load] = {}
        self.host: HostSide | None = None
        if plan.host:
            self.host = host_side(scheduler, plan, self.runner, seed)

    @property
    def busy(self) -> bool:
        """Whether a step is in flight."""
        return bool(self._queue)

    def _seconds(self, work: StepWork) -> float:
        if work.empty:
            return 0.0
        stalled_s = STALL_S if self.steps == self.plan.stalled else 0.0
        return self.plan.base_s + work.prefill_tokens * self.plan.token_s + stalled_s

    def _scheduled(self, output: Any) -> None:
        self.steps += 1
        self.computed_tokens += output.total_num_scheduled_tokens
        self._settled[id(output)] = self.runner.executed
        self.watch(output)

    def _complete(
        self, step: StepDecisions, output: Any, computed: Mapping[str, int], ends_at: float
    ) -> None:
        self.now = max(self.now, ends_at)
        self.runner.leave(output)
        if self.host is not None:
            self.host.before(output)
        sampled, pooled = self.runner.execute(output, self._settled.pop(id(output)))
        beside: dict[str, Any] = {"pooler_output": pooled}
        if self.host is not None:
            beside["kv_connector_output"] = self.host.after(output, self.scheduler.requests)
        elif (connector := self.scheduler.connector) is not None:
            begun = getattr(output.kv_connector_metadata, "begun", ())
            self._coming.update({load[0]: load for load in begun})
            beside["kv_connector_output"] = self._transfers(connector)
        for answer in complete(self.scheduler, output, sampled, **beside):
            self.deliver(answer)

    def _transfers(self, connector: Elsewhere) -> KVConnectorOutput:
        draw, requests = self._rng.random, self.scheduler.requests
        arrived = {name for name in self._coming if draw() < _ARRIVES}
        sent = {name for name in connector.going if draw() < _ARRIVES}
        lost = {name for name in sorted(arrived) if draw() < _FAILS}
        connector.failed |= lost
        for name in sorted(arrived):
            load = self._coming.pop(name)
            if name not in lost and not requests[name].is_finished():
                self.runner.write_loaded(*load)
        for name in sent:
            del connector.going[name]
        return KVConnectorOutput(
            finished_recving=arrived, finished_sending=sent, failed_recving=lost
        )


def make_engine(
    cls: type[Any], plan: EnginePlan, settings: Mapping[str, Any] | None, seed: int
) -> StressEngine:
    """Make the engine of a plan with a scheduler of the class ``cls``."""
    scheduler = make_scheduler(
        cls,
        max_num_seqs=plan.slots,
        blocks=plan.blocks,
        max_model_len=plan.max_model_len,
        prefix_caching=plan.prefix_cache,
        kinds=_kinds(plan.layers),
        kv_events=plan.kv_events,
        settings=settings,
        vllm=_vllm(plan, settings or {}),
        max_num_batched_tokens=plan.step_tokens,
        long_prefill_token_threshold=plan.long_prefill,
        scheduler_reserve_full_isl=plan.whole_prompt_fits,
        policy=plan.order,
        max_num_active_seqs=plan.active_slots,
        async_scheduling=plan.in_flight > 1,
        disable_hybrid_kv_cache_manager=plan.connector is not None,
    )
    if plan.loras:
        scheduler.lora_config = SimpleNamespace(max_loras=plan.loras)
    if LAYERS[plan.layers] > 1:
        scheduler.cache_config.kv_cache_size_tokens = (
            plan.blocks // LAYERS[plan.layers] * BLOCK_SIZE
        )
    return StressEngine(scheduler, plan, seed)


def _kinds(layers: str) -> tuple[Any, ...]:
    import torch

    heads: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}

    def kind(window: int | None) -> Any:
        if window is None:
            sizes = ((2 * BLOCK_SIZE,),)
            return MambaSpec(block_size=BLOCK_SIZE, shapes=sizes, dtypes=(torch.float32,))
        if window:
            return SlidingWindowSpec(block_size=BLOCK_SIZE, sliding_window=window, **heads)
        return FullAttentionSpec(block_size=BLOCK_SIZE, **heads)

    return tuple(map(kind, _WINDOWS[layers]))


def _vllm(plan: EnginePlan, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of vLLM's configuration for the plan's connector, host memory and
    drafts.
    """
    fields: dict[str, Any] = {}
    if plan.connector is not None:
        fields["kv_transfer_config"] = KVTransferConfig(
            kv_connector=Elsewhere.__name__,
            kv_role="kv_both",
            kv_connector_module_path=Elsewhere.__module__,
            kv_load_failure_policy=plan.connector,
        )
    elif plan.host:
        retention = str(settings.get("retention", SchedulerConfig().retention))
        fields["kv_transfer_config"] = host_config(plan, retention)
    if plan.drafts:
        config = base_config()
        fields["speculative_config"] = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=plan.drafts,
            prompt_lookup_max=3,
            prompt_lookup_min=1,
            target_model_config=config.model_config,
            target_parallel_config=config.parallel_config,
        )
    return fields
