"""How the scheduler is set: policy, queue levels, quanta, anti-starvation, preemption.

The standard library only: this travels into the engine core as plain JSON.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any

from agentrt.errors import ConfigError

RETENTIONS = ("lru", "ttl", "cost")
"""What decides whose cached blocks go first: `agentrt.scheduler.retention`."""

ADMISSIONS = ("off", "cap", "memory")
"""What decides which programs may use the KV cache now: `agentrt.scheduler.admission`."""

DEFAULT_POLICY = "adaptive"
"""The policy that is used where none is named."""

_QUANTA = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class _GoesWithPolicy(str):
    """A retention or an admission that nobody named, so that another policy brings its own."""

    __slots__ = ()


_UNNAMED = _GoesWithPolicy()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Settings of the scheduler. Without arguments they are the defaults of every command.

    ``policy`` names what ranks a call.

    ``quanta`` (seconds of service) are the time quanta of the queue levels Q_1 … Q_{K-1}; the last
    level, Q_K, has no end. Level i holds ranks from the sum of the quanta before it up to the sum
    that includes its own, so K = len(quanta) + 1.

    ``beta`` is the anti-starvation threshold: a call is promoted to Q_1 once its
    program has waited ``beta`` times as long as it was served. At most
    ``max_promoted`` promoted calls wait at one time, so that a backlog in which all
    starve does not turn into first come, first served with a storm of preemptions.

    ``lane`` is the share of the batch that serves programs in the order of their arrival,
    under a policy that keeps a lane (`adaptive`); 0 is none.

    ``preemption`` lets a waiting call of a strictly better level take the place of a
    running one. A running call is safe for its first ``min_residency_steps`` engine
    steps, and when at most ``min_remaining_tokens`` of its tokens are left: undoing
    such a call costs more than letting it be. ``max_preemptions_per_step`` bounds what
    one step spends on preempting and admitting anew.

    ``history`` is a file that keeps what is learned of programs over restarts; ``none`` keeps it
    nowhere. None leaves that to whoever makes the engine: an embedded engine has a file for its
    model and size in the platform's folder for data, a bare scheduler and one in virtual time
    keep nothing.

    ``retention`` decides whose cached blocks are evicted first when memory is short: ``lru`` is
    vLLM's own order, ``ttl`` protects a program's for ``retention_ttl`` seconds after its
    last call, ``cost`` keeps those longest whose loss is expected to cost the most.
    ``admission`` decides which programs' calls may run at all: with ``off`` those of all, with
    ``cap`` of ``admission_cap`` programs at a time, with ``memory`` of as many as fit into the
    KV cache with their contexts. Under ``memory`` a program that has waited for admission for
    ``ttft_target`` seconds is admitted, whether there is room or not; None sets no such target.
    A retention or an admission that is not named (left out, or None) goes with the policy:
    ``cost`` and ``memory`` with ``adaptive``; ``lru`` and ``off`` with every other policy, so that
    ``fcfs`` alone schedules as stock vLLM does. `dataclasses.replace` with another policy
    changes it, too.

    ``stale_after_s``: a program that is not heard of for so long (seconds) is dropped
    from the engine's table.
    """

    policy: str = DEFAULT_POLICY
    quanta: tuple[float, ...] = _QUANTA
    beta: float = 8.0
    max_promoted: int = 4
    lane: float = 0.05
    preemption: bool = True
    min_residency_steps: int = 4
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
            raise ConfigError(f"beta must be positive (or inf for never), got {self.beta}")
        if not 0 <= self.lane < 1:
            raise ConfigError(f"lane must be a share of the batch, 0 to below 1, got {self.lane}")
        for name in (
            "max_promoted",
            "min_residency_steps",
            "min_remaining_tokens",
            "max_preemptions_per_step",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.retention not in RETENTIONS:
            raise ConfigError(
                f"unknown retention {self.retention!r}; known: {', '.join(RETENTIONS)}"
            )
        self._check_admission()
        for name in ("retention_ttl", "stale_after_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive seconds, got {getattr(self, name)}")

    def _complete(self) -> None:
        """Set the retention and the admission that nobody named to those of the policy."""
        for name, with_default, with_others in (
            ("retention", "cost", "lru"),
            ("admission", "memory", "off"),
        ):
            value = getattr(self, name)
            if value is None or isinstance(value, _GoesWithPolicy):
                chosen = with_default if self.policy == DEFAULT_POLICY else with_others
                object.__setattr__(self, name, _GoesWithPolicy(chosen))

    def _check_admission(self) -> None:
        if self.admission not in ADMISSIONS and ":" not in self.admission:
            raise ConfigError(
                f"unknown admission {self.admission!r}; known: {', '.join(ADMISSIONS)}, or "
                "package.module:Class"
            )
        if self.admission_cap < 1:
            raise ConfigError(f"admission_cap must be at least 1, got {self.admission_cap}")
        if self.ttft_target is not None and not 0 < self.ttft_target < math.inf:
            raise ConfigError(f"ttft_target must be positive seconds, got {self.ttft_target}")

    @classmethod
    def of_policy(cls, policy: str = DEFAULT_POLICY, **settings: Any) -> SchedulerConfig:
        """Return ``SchedulerConfig(policy, **settings)``; kept for code that calls it."""
        return cls(policy=policy, **settings)

    @property
    def history_file(self) -> str | None:
        """The file that ``history`` names; None where it names none."""
        return None if self.history == "none" else self.history

    @property
    def level_ends(self) -> tuple[float, ...]:
        """Q^hi of each level, in seconds of attained service; the last is infinite."""
        return (*accumulate(self.quanta), math.inf)

    @property
    def level_quanta(self) -> tuple[float, ...]:
        """The quantum of each level in seconds; the last is infinite."""
        return (*self.quanta, math.inf)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able values, for vLLM's ``additional_config`` and for reports."""
        values = asdict(self)
        values["quanta"] = list(self.quanta)
        values["retention"], values["admission"] = str(self.retention), str(self.admission)
        # JSON has no infinity; None stands for "never".
        values["beta"] = self.beta if math.isfinite(self.beta) else None
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SchedulerConfig:
        """Read what `to_dict` wrote. Raises `ConfigError` for an unknown key or a bad value."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigError(
                f"unknown scheduler setting {unknown[0]!r}; known: {', '.join(sorted(known))}"
            )
        given = dict(values)
        if "beta" in given and given["beta"] is None:
            given["beta"] = math.inf
        try:
            return cls(**given)
        except TypeError as error:
            raise ConfigError(f"bad scheduler setting: {error}") from error
