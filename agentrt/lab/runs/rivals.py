"""Who is compared where memory is short: vLLM alone, rivals' rules, and ours, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.backends.gates import Cap, Gate, Gated, ThunderAgent
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.oracles import KNOWING, policy_names
from agentrt.lab.runs.contenders import STOCK, Stock
from agentrt.scheduler.config import ADMISSIONS, RETENTIONS, SchedulerConfig
from agentrt.scheduler.policies import policy_names as engine_policies

CAP, THUNDER, CONTINUUM, DEFAULT = "cap", "thunderagent", "continuum", "default"
DECAY, AMPLE = f"{THUNDER}-decay", "+ample"
_TIMES_AMPLE = 16
_OURS = "ours as a policy with what else is on, such as fcfs+cost or adaptive+memory"
HOW = (
    f"{STOCK}; {CAP}:N (stock, at most N programs at a time); {THUNDER}, {DECAY}; {CONTINUUM}; "
    f"{_OURS}, {' and '.join(KNOWING)} (which know sizes) among the policies; "
    f"or any of these and {AMPLE}, with {_TIMES_AMPLE} times the memory"
)


@dataclass(frozen=True, slots=True)
class Rival:
    """A contender: who schedules its engine, behind which gate, with how much of the memory.

    ``pins`` stands for Continuum's scheduler in place of ours.
    """

    scheduling: SchedulerConfig | Stock
    gate: Callable[[VirtualOptions], Gate] | None = None
    memory: int = 1
    pins: bool = False

    def sized(self, options: VirtualOptions) -> VirtualOptions:
        """The engine's size for it."""
        return replace(options, kv_blocks=self.memory * options.kv_blocks)

    def virtual(self, options: VirtualOptions, times: StepTimeModel) -> Virtual:
        """Its engine in virtual time."""
        options = self.sized(options)
        if self.gate is not None:
            return Gated(self.gate(options), options, times)
        pinning = _pinning() if self.pins else None
        return Virtual(self.scheduling, options, times, scheduler_cls=pinning)

    @property
    def on_engines(self) -> bool:
        """Whether a real engine can run it: none knows sizes, or has Continuum's scheduler."""
        if isinstance(self.scheduling, Stock):
            return True
        return not self.pins and self.scheduling.policy not in KNOWING


def rival(name: str) -> Rival:
    """The contender of a name. Raises `ConfigError` for one that says nothing."""
    if name.endswith(AMPLE):
        one = rival(name.removesuffix(AMPLE))
        return replace(one, memory=_TIMES_AMPLE * one.memory)
    kind, _, number = name.partition(":")
    if kind == CAP and number.isdecimal() and int(number):
        return Rival(Stock(), lambda options: Cap(int(number)))
    if name in (THUNDER, DECAY):
        return Rival(
            Stock(),
            lambda options: ThunderAgent(
                options.kv_blocks * options.block_size, decay=name == DECAY
            ),
        )
    if name == CONTINUUM:
        return Rival(SchedulerConfig(policy="program-fcfs"), pins=True)
    return Rival(Stock() if name == STOCK else settings(name, HOW, policy_names()))


def settings(
    name: str, names: str = f"{STOCK}; or {_OURS}", policies: Sequence[str] = ()
) -> SchedulerConfig:
    """Ours: a policy, and with a plus each a retention or a way of admission.

    ``policies`` are the engine's where none are given. Raises `ConfigError` for another name,
    which tells the ``names`` that there are.
    """
    if name == DEFAULT:
        return SchedulerConfig.of_policy()
    policy, *more = name.split("+")
    kept = [one for one in more if one in RETENTIONS]
    admitted = [one for one in more if one in ADMISSIONS]
    known = len(kept) + len(admitted) == len(more) and policy in (policies or engine_policies())
    if not known or len(kept) > 1 or len(admitted) > 1:
        raise ConfigError(f"no contender is named {name!r}: {names}")
    return SchedulerConfig(
        policy=policy, retention=(*kept, "lru")[0], admission=(*admitted, "off")[0]
    )


def _pinning() -> type[Any]:
    from agentrt.lab.engine.continuum import ContinuumScheduler

    return ContinuumScheduler
