"""The scheduling policies by name, including policies of other packages.

To add a policy to this package:

1. Write a subclass of `Policy` that implements ``priority``, or a subclass of
   `AttainedService` that implements ``level_service_s``. Published policies are in `published`. A
   new module is also named in ``packages/agentrt-scheduler/pyproject.toml``.
2. List the class in `BUILT_IN` below, and name the policy in ``docs/policies.md`` and in
   ``tests/scheduler/test_settings.py``. If its default retention and admission are ``cost`` and
   ``memory``, add its name to `MEMORY_POLICIES` in `agentrt.scheduler.config`, too.
3. Test in ``tests/scheduler/`` which calls run first.

Another package adds a policy by an entry point in the group ``agentrt.policies`` whose object is a
subclass of `Policy`. Its module may import only the standard library and `agentrt.scheduler`,
because it is loaded in the engine core.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import entry_points
from inspect import isabstract

from agentrt.errors import ConfigError
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies.adaptive import Adaptive, LongestRemaining
from agentrt.scheduler.policies.base import Policy
from agentrt.scheduler.policies.published import (
    Atlas,
    AtlasScalar,
    AttainedService,
    Fcfs,
    Mlfq,
    Plas,
    ProgramFcfs,
    RoundRobin,
    Srtf,
    TwoLevel,
)
from agentrt.scheduler.queues import Priority

ENTRY_POINT_GROUP = "agentrt.policies"

BUILT_IN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        Atlas,
        Adaptive,
        LongestRemaining,
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
    """Return the names of all available policies. The policies of agentrt come first."""
    theirs = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}
    return [*BUILT_IN, *sorted(theirs - set(BUILT_IN))]


def make_policy(config: SchedulerConfig) -> Policy:
    """Make the policy that the settings name. Raises `ConfigError` for an unknown policy, and for a
    policy that cannot be loaded.
    """
    return policy_class(config.policy)(config)


def level_ends(config: SchedulerConfig) -> tuple[float, ...]:
    """Return the upper ends of the levels, in seconds of attained service.

    Returns an empty tuple for policies that do not rank calls by attained service.
    """
    return config.level_ends if issubclass(policy_class(config.policy), AttainedService) else ()


_NEEDED = {
    "retention_ttl": ("retention", "ttl"),
    "admission_cap": ("admission", "cap"),
    "ttft_target": ("admission", "memory"),
}
"""Settings that only one retention or admission policy uses."""


def check_settings(config: SchedulerConfig, names: Iterable[str]) -> None:
    """Raise `ConfigError` for the first setting that has no effect with this configuration. Only
    the settings in `_NEEDED`, and those that built-in policies have in `Policy.settings`, are
    checked.

    ``names`` are the names of the settings that the user has set, even if to their defaults.
    """
    reads = policy_class(config.policy).settings
    known = frozenset[str]().union(*(policy.settings for policy in BUILT_IN.values()))
    for name in names:
        option = f"--{name.replace('_', '-')}"
        if name in _NEEDED:
            field, needed = _NEEDED[name]
            if (now := getattr(config, field)) != needed:
                raise ConfigError(
                    f"{option} has an effect only with --{field} {needed}, but --{field} is {now} "
                    f"now; set --{field} {needed}, or leave {option} out"
                )
        elif name in known - reads:
            policies = BUILT_IN.values()
            others = ", ".join(policy.name for policy in policies if name in policy.settings)
            raise ConfigError(
                f"{option} has no effect with --policy {config.policy}; set --policy to a policy "
                f"that uses it, such as {others}, or leave {option} out"
            )


def policy_class(name: str) -> type[Policy]:
    """Return the class of a policy by its name. Raises `ConfigError` like `make_policy`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            policy = point.load()
        except Exception as error:
            raise ConfigError(
                f"cannot load policy {name!r} ({point.value}): {error}; repair the package that "
                "offers it, or use another policy"
            ) from error
        if not (isinstance(policy, type) and issubclass(policy, Policy)) or isabstract(policy):
            raise ConfigError(
                f"policy {name!r} ({point.value}) is not a complete subclass of "
                "agentrt.scheduler.policies.Policy; derive it from that class, and implement all "
                "abstract methods"
            )
        return policy
    raise ConfigError(f"unknown policy {name!r}; available: {', '.join(policy_names())}")


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
