"""The engine of the step simulator, described by plain values, like `Machine` for virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrt.errors import ConfigError, InvariantError
from agentrt.lab.driver import drive
from agentrt.lab.oracles import policy_names
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.router import make_router
from benchmarks.steps.simulator import Steps


@dataclass(frozen=True, slots=True)
class SlotMachine(Machine):
    """An engine with batch slots and steps of ``step_s`` seconds, without memory."""

    step_s: float = 0.025

    def __post_init__(self) -> None:
        make_router(self.router)

    def in_words(self) -> str:
        return (
            f"**Step simulator**: {self.max_num_seqs} batch slots; every step takes "
            f"{1000 * self.step_s:.2f} ms and gives each\nrunning call a token. No memory, no "
            "prefill, no model: the order of calls alone."
        )

    def token_s(self) -> float:
        return self.step_s

    def capacity_per_s(self, programs: Sequence[ProgramShape]) -> float:
        tokens = sum(program.output_tokens for program in programs) / len(programs)
        return self.replicas * (self.max_num_seqs / self.step_s / tokens)

    def check(self, contenders: Iterable[Contender]) -> None:
        """Raise `ConfigError` for a contender that needs vLLM's scheduler, or more memory."""
        for contender in contenders:
            if contender.config is None or contender.scheduler or contender.memory > 1:
                raise ConfigError(
                    f"{contender.name!r} needs vLLM's scheduler or its memory, which the step "
                    f"simulator does not have; it runs ours, such as {', '.join(policy_names())}"
                )

    def run(self, contender: Contender, programs: Sequence[ProgramShape]) -> RunOutcome:
        """Run programs on this engine. Raises `InvariantError` for a contender that needs vLLM."""
        if contender.config is None:
            raise InvariantError("vLLM's own scheduler runs in virtual time only")
        engines = Steps(
            contender.config,
            self.max_num_seqs,
            self.step_s,
            replicas=self.replicas,
            router=self.router,
        )
        return drive(engines, programs)

    def to_dict(self) -> dict[str, Any]:
        about = {"batch": self.max_num_seqs, "depth": "steps"}
        return about | self.fleet_dict() | {"step_s": self.step_s}
