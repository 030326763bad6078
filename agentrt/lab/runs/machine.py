"""The simulated engine, described by plain values, and its capacity for a workload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.cli.installed import VLLM, installed
from agentrt.errors import ConfigError
from agentrt.extras import install_vllm
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.workloads.shape import ProgramShape, cached_tokens, prompt_tokens
from agentrt.router import DEFAULT_ROUTER, make_router, router_names

if TYPE_CHECKING:
    from agentrt.lab.outcome import RunOutcome
    from agentrt.lab.runs.contenders import Contender


@dataclass(frozen=True, slots=True)
class Machine:
    """One or more equal engines in virtual time, with vLLM's real scheduler and KV-cache manager.

    Each engine has ``max_num_seqs`` batch slots and ``kv_blocks`` blocks of ``block_size`` tokens,
    and computes at most ``max_num_batched_tokens`` tokens in a step. ``step_model`` is a step-time
    model or its file; None means the default values of `StepTimeModel`. ``in_flight`` is the number
    of steps that are scheduled at a time. ``router`` spreads the calls over ``replicas`` engines.

    Raises `ConfigError` for an unknown router, an invalid file or size, and without vLLM.
    """

    max_num_seqs: int = 32
    kv_blocks: int = 8192
    max_num_batched_tokens: int = 2048
    step_model: Path | StepTimeModel | None = None
    replicas: int = 1
    router: str = DEFAULT_ROUTER
    block_size: int = BLOCK_SIZE
    in_flight: int = 1

    def __post_init__(self) -> None:
        make_router(self.router)
        self.step_time()
        self.virtual_options()
        _check_vllm()

    def step_time(self) -> StepTimeModel:
        """Return the step-time model. Raises `ConfigError` for an invalid file."""
        if isinstance(self.step_model, Path):
            return _loaded(self.step_model)
        return self.step_model or StepTimeModel()

    def virtual_options(self) -> VirtualOptions:
        """Return the sizes of the virtual engine. The longest context fills the KV cache."""
        return VirtualOptions(
            max_num_seqs=self.max_num_seqs,
            kv_blocks=self.kv_blocks,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            max_model_len=max(1, self.kv_blocks - 1) * self.block_size,
            in_flight=self.in_flight,
        )

    def in_words(self) -> str:
        """Describe the simulated engine for the head of a table."""
        times = self.step_time()
        if times.model == times.hardware:
            measured = "made up, similar to an 8B model on a large GPU"
        else:
            measured = f"the times measured for {times.model} on {times.hardware}"
        engine = "Engine"
        if self.replicas > 1:
            engine = f"{self.replicas} engines behind the router {self.router}, each"
        return (
            f"**Virtual time**: the real scheduler and KV-cache manager of vLLM {vllm_version()} "
            f"decide, and no model runs.\nThe times of steps are {measured}; this machine's speed "
            f"has no influence.\n{engine}: {self.max_num_seqs} batch slots, {self.kv_blocks} KV "
            f"blocks of {self.block_size} tokens, at most {self.max_num_batched_tokens} tokens a "
            "step."
        )

    def token_s(self) -> float:
        """Return the seconds for one token of a call in a full batch of decoding calls."""
        return self.step_time().decode_s(self.max_num_seqs)

    def capacity_per_s(self, programs: Sequence[ProgramShape]) -> float:
        """Return the number of programs like these that the engines can serve per second. Arrivals
        at this rate are a load of 1.
        """
        return self.replicas * capacity_per_s(programs, self.max_num_seqs, self.step_time())

    def check(self, contenders: Iterable[Contender]) -> None:
        """Raise `ConfigError` for a contender that cannot run on this machine: for vLLM's own
        scheduler behind a router that reads cached blocks. Subclasses may refuse other contenders.
        """
        stock = next((each.name for each in contenders if each.config is None), None)
        if stock is None or self.replicas == 1 or not make_router(self.router).reads_blocks:
            return
        others = [name for name in router_names() if not make_router(name).reads_blocks]
        raise ConfigError(
            f"{stock!r} is vLLM's own scheduler, whose cached blocks the router {self.router!r} "
            f"cannot read in a simulation; leave {stock} out, or use --router {' or '.join(others)}"
        )

    def run(self, contender: Contender, programs: Sequence[ProgramShape]) -> RunOutcome:
        """Run programs on this machine under a contender."""
        router = self.router if self.replicas > 1 else None
        options, times = self.virtual_options(), self.step_time()
        return contender.run(programs, options, times, replicas=self.replicas, router=router)

    def fleet_dict(self) -> dict[str, Any]:
        """Return the number of replicas and the router as JSON values; an empty dict for a single
        engine.
        """
        return {"replicas": self.replicas, "router": self.router} if self.replicas > 1 else {}

    def to_dict(self) -> dict[str, Any]:
        times = self.step_time()
        return (
            {"batch": self.max_num_seqs, "depth": "virtual"}
            | self.fleet_dict()
            | {
                "kv_blocks": self.kv_blocks,
                "block_size": self.block_size,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "step_time": {
                    "coefficients_s": list(times.coefficients),
                    "model": times.model,
                    "hardware": times.hardware,
                },
            }
        )


def vllm_version() -> str:
    """Return the version of the installed vLLM, which may be the GPU build or the CPU build;
    "unknown" without vLLM.
    """
    match = installed(*VLLM)
    return "unknown" if match is None else match[1]


def capacity_per_s(programs: Sequence[ProgramShape], batch: int, times: StepTimeModel) -> float:
    """Return the number of programs like these that an engine serves per second with full batches,
    if all shared prefixes are cached.
    """
    token_s = times.base_s / batch + times.per_decode_s
    seconds = 0.0
    for program in programs:
        for call in program.calls:
            fresh = prompt_tokens(call) - cached_tokens(program, call)
            context = prompt_tokens(call) + call.output_tokens / 2
            seconds += fresh * times.per_prefill_token_s
            seconds += call.output_tokens * (token_s + context * times.per_context_token_s)
    return len(programs) / seconds


@lru_cache(maxsize=4)
def _loaded(path: Path) -> StepTimeModel:
    return StepTimeModel.load(path)


def _check_vllm() -> None:
    if find_spec("vllm") is None:
        raise ConfigError(
            f"simulated engines need vLLM's scheduler, but vLLM is not installed; {install_vllm()}"
        )
