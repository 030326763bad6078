"""The policies by name, those of third parties among them.

A package adds its own with an entry point in the group ``agentrt.policies``, whose
object is a subclass of `Policy`. It must import the standard library and
`agentrt.scheduler` only, since it is loaded in the engine core.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from inspect import isabstract

from agentrt.errors import ConfigError
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.adaptive import Adaptive
from agentrt.scheduler.policies.attained import Atlas, AtlasScalar, AttainedService, Mlfq, Plas
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.policies.baselines import Fcfs, ProgramFcfs, RoundRobin, Srtf, TwoLevel
from agentrt.scheduler.promotion import Priority

ENTRY_POINT_GROUP = "agentrt.policies"

BUILT_IN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Atlas,
        Adaptive,
        AtlasScalar,
        Plas,
        Mlfq,
        RoundRobin,
        ProgramFcfs,
        Srtf,
        TwoLevel,
        Fcfs,
    )
}


def policy_names() -> list[str]:
    """All policies that can be named now, ours first."""
    theirs = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return [*BUILT_IN, *sorted(theirs - set(BUILT_IN))]


def make_policy(config: SchedulerConfig) -> Policy:
    """A fresh policy. Raises `ConfigError` for an unknown name or one that does not load."""
    return policy_class(config.policy)(config)


def level_ends(config: SchedulerConfig) -> tuple[float, ...]:
    """Where levels end (seconds of attained service) that a call's service alone decides.

    Empty under a policy that ranks calls by something else.
    """
    return config.level_ends if issubclass(policy_class(config.policy), AttainedService) else ()


_NEEDED = {
    "retention_ttl": ("retention", "ttl"),
    "admission_cap": ("admission", "cap"),
    "ttft_target": ("admission", "memory"),
}
"""Settings that only one way of retention or admission reads."""


def check_settings(config: SchedulerConfig, given: Iterable[str]) -> None:
    """Raise `ConfigError` for the first of the ``given`` settings that changes nothing under these.

    Given are those that somebody has named, whatever their value.
    """
    reads = policy_class(config.policy).settings
    for name in given:
        option = f"--{name.replace('_', '-')}"
        if name in _NEEDED:
            field, needed = _NEEDED[name]
            if (now := getattr(config, field)) != needed:
                raise ConfigError(f"{option} is for --{field} {needed}, which is {now} now")
        elif name in ("quanta", "beta", "max_promoted", "lane") and name not in reads:
            others = ", ".join(one.name for one in BUILT_IN.values() if name in one.settings)
            raise ConfigError(
                f"{option} changes nothing under --policy {config.policy}; it is for {others}"
            )


def policy_class(name: str) -> type[Policy]:
    """The class that a name stands for. Raises `ConfigError` as `make_policy` does."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            policy = point.load()
        except Exception as error:
            raise ConfigError(f"policy {name!r} ({point.value}) does not load: {error}") from error
        if not (isinstance(policy, type) and issubclass(policy, Policy)) or isabstract(policy):
            raise ConfigError(
                f"policy {name!r} ({point.value}) is not a whole subclass of "
                "agentrt.scheduler.policies.Policy"
            )
        return policy
    raise ConfigError(f"unknown policy {name!r}; known: {', '.join(policy_names())}")


__all__ = [
    "ENTRY_POINT_GROUP",
    "AttainedService",
    "Policy",
    "Priority",
    "check_settings",
    "level_ends",
    "make_policy",
    "policy_class",
    "policy_names",
]
