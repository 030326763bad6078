"""Who is compared where memory is short: vLLM alone, rivals' rules, and ours, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentrt.errors import ConfigError
from agentrt.lab.backends.gates import Cap, Gated, ThunderAgent
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
Make = Callable[[VirtualOptions, StepTimeModel], Virtual]


def rival(name: str) -> Make:
    """What makes a contender's engine. Raises `ConfigError` for a name that says nothing."""
    if name.endswith(AMPLE):
        make = rival(name.removesuffix(AMPLE))
        return lambda options, times: make(
            replace(options, kv_blocks=_TIMES_AMPLE * options.kv_blocks), times
        )
    kind, _, number = name.partition(":")
    if kind == CAP and number.isdecimal() and int(number):
        return lambda options, times: Gated(Cap(int(number)), options, times)
    if name in (THUNDER, DECAY):
        return lambda options, times: Gated(
            ThunderAgent(options.kv_blocks * options.block_size, decay=name == DECAY),
            options,
            times,
        )
    if name == CONTINUUM:
        return _continuum
    scheduling = Stock() if name == STOCK else settings(name, HOW, policy_names())
    return lambda options, times: Virtual(scheduling, options, times)


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


def _continuum(options: VirtualOptions, times: StepTimeModel) -> Virtual:
    from agentrt.lab.engine.continuum import ContinuumScheduler

    config = SchedulerConfig(policy="program-fcfs")
    return Virtual(config, options, times, scheduler_cls=ContinuumScheduler)
