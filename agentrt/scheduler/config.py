"""The settings of the scheduler: policy, queue levels, quanta, anti-starvation, preemption.

The settings are sent to the engine core as plain JSON (`SchedulerConfig.to_dict`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any

from agentrt.errors import ConfigError
from agentrt.former import former_names

RETENTIONS = ("lru", "ttl", "cost")
"""The retention policies, which decide whose cached blocks are evicted first
(`agentrt.scheduler.retention`).
"""

ADMISSIONS = ("off", "cap", "memory")
"""The admission policies, which decide which programs may use the KV cache now
(`agentrt.scheduler.admission`).
"""

DEFAULT_POLICY = "adaptive"
"""The policy that is used if the settings name none."""

LONGEST_REMAINING = "longest-remaining"
"""The policy that serves the longest programs first (`agentrt.scheduler.policies.adaptive`)."""

MEMORY_POLICIES = (DEFAULT_POLICY, LONGEST_REMAINING)
"""The policies under which a retention that is not set is ``cost``, and an admission that is not
set is ``memory``.
"""

_QUANTA = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class _GoesWithPolicy(str):
    """The name of a retention or an admission that was chosen by the policy and not by the user. It
    changes if the policy changes.
    """

    __slots__ = ()


_UNNAMED = _GoesWithPolicy()
_FORMER_NAMES = {"min_residency_steps": "min_running_steps"}
"""The former names of settings, each with its present name."""


@former_names(**_FORMER_NAMES)
@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """The settings of the scheduler. The default values are also the defaults of all commands,
    except for the engine that a batch opens for itself, which has `BATCH_SCHEDULER`, and for
    commands that compare or measure policies.

    ``policy`` is the name of the policy that ranks calls.

    ``quanta`` are the time quanta, in seconds of service, of the queue levels Q_1 … Q_{K-1}; the
    last level, Q_K, has no limit, so K = len(quanta) + 1. A call whose attained service is at least
    the sum of the first i - 1 quanta, and less than the sum of the first i quanta, is in level Q_i.

    ``beta`` is the anti-starvation threshold: a call is promoted to Q_1 once its program has waited
    ``beta`` times as long as the program was served. At most ``max_promoted`` promoted calls wait
    at the same time. Without this limit, a backlog in which all calls starve would turn into first
    come, first served, with very many preemptions.

    ``lane`` is the ageing share: the share of the batch that is reserved for the programs that
    arrived first, under a policy that has such a share (`adaptive`); 0 reserves nothing.

    ``preemption`` lets a waiting call of a strictly better level take the slot of a running call. A
    running call is not preempted in the first ``min_running_steps`` engine steps after it has
    started, for the first time or after a preemption. It is also not preempted when at most
    ``min_remaining_tokens`` output tokens are left, because such a preemption would cost more than
    it gains. ``max_preemptions_per_step`` is the maximum number of preemptions in one engine step.

    ``history`` is a file that keeps the statistics of programs across restarts; the text ``none``
    means no file. With the value None, the code that creates the engine decides: an embedded engine
    keeps a file for its model and size in the platform's data folder; a bare scheduler and an
    engine in virtual time keep no file.

    ``retention`` decides which programs' cached blocks are evicted first when memory is short:
    ``lru`` is vLLM's own order; ``ttl`` protects a program's blocks for ``retention_ttl`` seconds
    after a call, and after the start and the end of a wait for a tool, an event or a human;
    ``cost`` evicts last the blocks whose loss is expected to cost most.
    ``admission`` decides which programs' calls may run at all: with ``off`` all programs, with
    ``cap`` at most ``admission_cap`` programs, with ``memory`` as many programs as fit into the KV
    cache with their contexts; ``package.module:Class`` is an admission of another package. Under
    ``memory``, a program that has waited for admission for ``ttft_target`` seconds is admitted even
    if it does not fit; None sets no such target. If the retention or the admission is not set (left
    out, or None), the policy decides: ``cost`` and ``memory`` with ``adaptive`` and
    ``longest-remaining``, ``lru`` and ``off`` with every other policy, so that ``fcfs`` alone
    schedules like stock vLLM. `dataclasses.replace` with another policy changes them, too.

    ``stale_after_s`` is the number of seconds without any event after which a program that has no
    call in the engine has timed out and is dropped from the engine's table.
    """

    policy: str = DEFAULT_POLICY
    quanta: tuple[float, ...] = _QUANTA
    beta: float = 8.0
    max_promoted: int = 4
    lane: float = 0.05
    preemption: bool = True
    min_running_steps: int = 4
    min_remaining_tokens: int = 4
    max_preemptions_per_step: int = 2
    stale_after_s: float = 3600.0
    history: str | None = None
    retention: str = _UNNAMED
    retention_ttl: float = 30.0
    admission: str = _UNNAMED
    admission_cap: int = 16
    ttft_target: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "quanta", tuple(float(q) for q in self.quanta))
        self._complete()
        if any(not q > 0 for q in self.quanta):
            raise ConfigError(f"quanta must be positive seconds, got {list(self.quanta)}")
        if not self.beta > 0:
            raise ConfigError(
                f"beta must be a positive number, or inf to promote no call, got {self.beta}"
            )
        if not 0 <= self.lane < 1:
            raise ConfigError(
                f"lane must be a share of the batch, at least 0 and below 1, got {self.lane}"
            )
        for name in (
            "max_promoted",
            "min_running_steps",
            "min_remaining_tokens",
            "max_preemptions_per_step",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.retention not in RETENTIONS:
            raise ConfigError(
                f"unknown retention {self.retention!r}; available: {', '.join(RETENTIONS)}"
            )
        self._check_admission()
        for name in ("retention_ttl", "stale_after_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive seconds, got {getattr(self, name)}")

    def _complete(self) -> None:
        """Choose the retention and the admission by the policy if the user has not set them."""
        for name, for_memory, for_others in (
            ("retention", "cost", "lru"),
            ("admission", "memory", "off"),
        ):
            value = getattr(self, name)
            if value is None or isinstance(value, _GoesWithPolicy):
                chosen = for_memory if self.policy in MEMORY_POLICIES else for_others
                object.__setattr__(self, name, _GoesWithPolicy(chosen))

    def _check_admission(self) -> None:
        if self.admission not in ADMISSIONS and ":" not in self.admission:
            raise ConfigError(
                f"unknown admission {self.admission!r}; available: {', '.join(ADMISSIONS)}, or "
                "package.module:Class"
            )
        if self.admission_cap < 1:
            raise ConfigError(f"admission_cap must be at least 1, got {self.admission_cap}")
        if self.ttft_target is not None and not 0 < self.ttft_target < math.inf:
            raise ConfigError(
                f"ttft_target must be a finite number of seconds above 0, got {self.ttft_target}"
            )

    @classmethod
    def of_policy(cls, policy: str = DEFAULT_POLICY, **settings: Any) -> SchedulerConfig:
        """Return ``SchedulerConfig(policy, **settings)``. Kept for compatibility."""
        return cls(policy=policy, **settings)

    @property
    def history_file(self) -> str | None:
        """The file that ``history`` names; None if it names no file."""
        return None if self.history == "none" else self.history

    @property
    def level_ends(self) -> tuple[float, ...]:
        """The upper end of each level (Q^hi in Agentix), in seconds of attained service. The end of
        the last level is infinite.
        """
        return (*accumulate(self.quanta), math.inf)

    @property
    def level_quanta(self) -> tuple[float, ...]:
        """The quantum of each level in seconds. The quantum of the last level is infinite."""
        return (*self.quanta, math.inf)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, for vLLM's ``additional_config`` and for reports."""
        values = asdict(self)
        values["quanta"] = list(self.quanta)
        values["retention"], values["admission"] = str(self.retention), str(self.admission)
        # JSON has no infinity; None stands for "never".
        values["beta"] = self.beta if math.isfinite(self.beta) else None
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SchedulerConfig:
        """Make settings from the result of `to_dict`. Raises `ConfigError` for an unknown key or an
        invalid value.

        Former names of settings are accepted without a warning, because older journals have them.
        """
        settings = {_FORMER_NAMES.get(name, name): value for name, value in values.items()}
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise ConfigError(
                f"unknown scheduler setting {unknown[0]!r}; available: {', '.join(sorted(known))}"
            )
        if "beta" in settings and settings["beta"] is None:
            settings["beta"] = math.inf
        try:
            return cls(**settings)
        except (TypeError, ValueError) as error:
            name = next((n for n, value in settings.items() if not _accepts(cls, n, value)), "")
            raise ConfigError(
                f"invalid scheduler setting {name}={settings.get(name)!r}: {error}"
                if name
                else f"invalid scheduler setting: {error}"
            ) from error


def _accepts(kind: type[SchedulerConfig], name: str, value: Any) -> bool:
    """Return whether ``value`` has a type that the setting ``name`` allows. The value itself may be
    outside the allowed range.
    """
    try:
        kind(**{name: value})
    except ConfigError:
        return True
    except (TypeError, ValueError):
        return False
    return True


BATCH_SCHEDULER = SchedulerConfig("fcfs", retention="cost", admission="memory")
"""The settings of the engine that a batch opens for itself, unless the user names a policy. Only
the end of the last program counts, and a policy that prefers short programs delays the longest
program (docs/results/batch.md).
"""
