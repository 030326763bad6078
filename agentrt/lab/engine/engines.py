"""The laboratory's embedded engines. They have a probe, and agentrt's scheduler or vLLM's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrt.cli.engine_log import EngineLog, root_cause
from agentrt.errors import ConfigError, EngineStartError
from agentrt.executors.history import NONE
from agentrt.executors.vllm._compat.core import ask_scheduler
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.engine.virtual import PrioritizedCall, StockPolicy
from agentrt.request import Call
from agentrt.scheduler.config import SchedulerConfig

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import VllmConfig
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM


@asynccontextmanager
async def started(engine: LabEngine, *, verbose: bool = False) -> AsyncIterator[None]:
    """Run the engine during the ``with`` block. The engine's output is written to a log file, or to
    stderr if ``verbose``.
    """
    with EngineLog(verbose=verbose) as log:
        try:
            with log.collect():
                await engine.start(lambda message: None)
            yield
        except EngineStartError as error:
            cause = root_cause(log.lines()) or error
            raise EngineStartError(
                f"the engine did not start: {cause} ({log.name_it()})"
            ) from error
        finally:
            await engine.close()


def lab_engine(base: EngineOptions, scheduling: SchedulerConfig | StockPolicy) -> LabEngine:
    """Return an engine with agentrt's scheduler and these settings, or with vLLM's scheduler."""
    if isinstance(scheduling, SchedulerConfig):
        return LabEngine(replace(base, scheduler=scheduling))
    return StockEngine(base, scheduling)


_SCHEDULERS = "agentrt.lab.engine.schedulers"


class LabEngine(VLLMEngine):
    """An embedded engine with a probe.

    If the options name a history file, the engine uses this file. Otherwise it neither reads nor
    writes a learned history, so that measurements do not depend on earlier runs.
    """

    def __init__(self, options: EngineOptions) -> None:
        if options.scheduler.history is None:
            options = replace(options, scheduler=replace(options.scheduler, history=NONE))
        super().__init__(options)

    def _prepare(self, config: VllmConfig) -> None:
        config.scheduler_config.scheduler_cls = f"{_SCHEDULERS}.ProgramScheduler"

    def sizes(self) -> dict[str, Any]:
        """Return the sizes of the running engine, as vLLM determined them."""
        config = self._engine().vllm_config
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "kv_blocks": config.cache_config.num_gpu_blocks,
            "block_size": config.cache_config.block_size,
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
        }

    async def probe(self, op: str, *, keep_steps: bool = False) -> Any:
        """Start or stop the probe (`agentrt.lab.engine.probe`). ``op`` is ``start``, which returns
        None, or ``stop``, which returns the probe's result.
        """
        from agentrt.lab.engine.probe import UTILITY  # imports vLLM, too slow for `--help`

        return await ask_scheduler(self._engine(), op, keep_steps, utility=UTILITY)


class StockEngine(LabEngine):
    """An engine with vLLM's own scheduler and one of vLLM's own policies, as a baseline.

    It schedules calls without regard to programs. With the policy ``priority``, calls are ordered
    by the priority of `PrioritizedCall`.
    """

    def __init__(self, options: EngineOptions, policy: StockPolicy) -> None:
        super().__init__(options)
        self._policy = policy

    def _prepare(self, config: VllmConfig) -> None:
        scheduler = config.scheduler_config
        scheduler.policy, scheduler.scheduler_cls = self._policy, None
        # The class that vLLM would choose, imported from the module that installs the probe.
        scheduler.scheduler_cls = f"{_SCHEDULERS}.{scheduler.get_scheduler_cls().__name__}"

    def _submit(
        self,
        llm: AsyncLLM,
        call: Call,
        prompt: Any,
        params: SamplingParams,
        options: Mapping[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        priority = call.priority if isinstance(call, PrioritizedCall) else 0
        return llm.generate(prompt, params, call.call_id, priority=priority, **options)

    async def configure(self, config: SchedulerConfig) -> None:
        raise ConfigError("vLLM's own scheduler has no agentrt settings to configure")

    async def _control(self, op: str, argument: Any = None) -> None:
        """Ignore messages about programs."""
