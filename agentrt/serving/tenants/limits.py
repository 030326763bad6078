"""Tenants' limits, their weights in fair sharing, and their current use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from agentrt.errors import AgentrtError, ConfigError
from agentrt.serving.settings import fault_in

_MINUTE_S = 60.0
_FULL_RETRY_S = 1.0
MOST_IDLE = 1024
"""Minimum number of tenants in memory at which idle tenants are forgotten: tenants that neither
have calls in flight nor have recently used a limited rate. On a server without keys, clients may
invent any number of names.
"""

Count = Annotated[int, Field(gt=0, strict=True)]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a tenant; None means no limit.

    - ``weight``: the tenant's share when tenants compete for the engine.
    - ``concurrency``: calls in the engine at the same time; further calls wait.
    - ``calls``: calls in flight, waiting calls included; further requests are refused.
    - ``programs``: live programs; counted separately for client programs, served programs and
      LangGraph runs.
    - ``requests_per_minute``: requests that start work; ``http_requests_per_minute``: all requests,
      except requests for health checks and pages.
    - ``tokens_per_minute``: computed tokens of prompts and outputs, charged when a call ends.
    - ``submitted``: live programs that were sent as source. ``submitted_memory_mib``,
      ``submitted_seconds`` (of computing), ``submitted_calls`` and ``submitted_tokens`` limit each
      of these programs.
    - ``threads``, ``assistants``, ``crons``, ``store_mib``: what the tenant may have in the
      database.
    - ``files_mib``: the total size of the tenant's files at ``/v1/files``, in MiB.
    - ``batches``: the number of the tenant's batches that have not ended.
    """

    weight: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = 1.0
    concurrency: Count | None = None
    calls: Count = 1024
    programs: Count = 4096
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    http_requests_per_minute: Count | None = None
    submitted: Count = 16
    submitted_memory_mib: Count = 64
    submitted_seconds: Count = 10
    submitted_calls: Count = 1000
    submitted_tokens: Count = 100_000
    threads: Count | None = 100_000
    assistants: Count | None = 10_000
    crons: Count | None = 1_000
    store_mib: Count | None = 256
    files_mib: Count | None = 1024
    batches: Count = 64


NAMES = tuple(field.name for field in fields(Limits))
_RATES = ("requests_per_minute", "tokens_per_minute", "http_requests_per_minute")
_LIMITS = TypeAdapter(Limits)


def read_limits(
    values: Mapping[str, Any], base: Limits, where: str, others: Iterable[str] = ()
) -> Limits:
    """Return ``base`` with the limits in ``values`` replaced.

    Raises `ConfigError` for an unknown field or an invalid value. The message begins with
    ``where``, the place that the values come from. For an unknown field, the message lists the
    limits, and ``others``: the fields of that place that are not limits.
    """
    if unknown := [name for name in values if name not in NAMES]:
        known = ", ".join((*others, *NAMES))
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}; available: {known}")
    try:
        return _LIMITS.validate_python({**asdict(base), **values})
    except ValidationError as error:
        raise ConfigError(f"{where}: {fault_in(error)}") from None


class BusyError(AgentrtError):
    """The error of a request whose tenant is at a limit. Retry after ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = max(1, math.ceil(retry_after))


class Bucket:
    """A token bucket that gains ``per_s`` each second, up to its ``size``.

    The bucket may be overdrawn. Then the next user waits until the debt is paid and the amount that
    it needs is available.
    """

    def __init__(self, size: float, per_s: float, now: float) -> None:
        self._size, self._per_s = size, per_s
        self._level, self._at = size, now

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount`` is available; if ``size`` is less than ``amount``,
        until the bucket is full.
        """
        self._fill(now)
        return max(0.0, (min(amount, self._size) - self._level) / self._per_s)

    def is_full(self, now: float) -> bool:
        """Return whether the bucket has regained all that was taken out of it."""
        self._fill(now)
        return self._level >= self._size

    def take(self, amount: float, now: float) -> None:
        """Take ``amount`` out of the bucket, even if less is available."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self._per_s
        self._level, self._at = min(self._size, self._level + gained), now


class _Use:
    """The current use of a tenant: its calls in flight, and a bucket for each limited rate."""

    def __init__(self, limits: Limits, calls: int, now: float) -> None:
        self.limits = limits
        self.calls = calls
        rates = {name: getattr(limits, name) for name in _RATES}
        self.buckets = {
            name: Bucket(rate, rate / _MINUTE_S, now)
            for name, rate in rates.items()
            if rate is not None
        }

    def is_idle(self, now: float) -> bool:
        """Return whether a new `_Use` would allow the same."""
        return not self.calls and all(bucket.is_full(now) for bucket in self.buckets.values())


class Tenants:
    """The limits and the current use of all tenants.

    ``limits_of`` returns the limits of tenants that have their own; all others have ``base``.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        base: Limits | None = None,
        limits_of: Callable[[], Mapping[str, Limits]] = dict,
    ) -> None:
        self._clock = clock
        self._base = Limits() if base is None else base
        self._limits_of = limits_of
        self._uses: dict[str, _Use] = {}
        self._most = MOST_IDLE

    def __len__(self) -> int:
        """Return how many tenants are in memory."""
        return len(self._uses)

    def limits(self, tenant: str) -> Limits:
        """Return the current limits of ``tenant``."""
        return self._limits_of().get(tenant, self._base)

    def enter(self, tenant: str, calls: int = 1) -> None:
        """Count a request of ``tenant`` that begins ``calls`` calls. `leave` ends the calls.

        Raises `BusyError` and counts nothing if the request would exceed a limit.
        """
        use = self._use(tenant)
        if use.calls + calls > (most := use.limits.calls):
            advice = "wait until calls have ended" if calls <= most else "send fewer calls at once"
            limit = "--max-calls" if most == self._base.calls else "calls in the file of keys"
            raise BusyError(
                f"tenant {tenant!r} has {use.calls} calls in flight, and this request begins "
                f"{calls} more; the tenant may have {most} calls in flight ({limit}), so {advice}",
                _FULL_RETRY_S,
            )
        self._ask(tenant, use, 1)
        use.calls += calls

    def leave(self, tenant: str, calls: int = 1) -> None:
        """End ``calls`` calls of ``tenant``."""
        self._use(tenant).calls -= calls

    def calls(self, tenant: str) -> int:
        """Return how many calls of the tenant are in flight."""
        use = self._uses.get(tenant)
        return 0 if use is None else use.calls

    def ask(self, tenant: str, requests: int = 1) -> None:
        """Count ``requests`` new requests of ``tenant``. No call of `leave` is needed for them.

        Raises `BusyError` and counts nothing if a rate of the tenant is used up.
        """
        self._ask(tenant, self._use(tenant), requests)

    def _ask(self, tenant: str, use: _Use, requests: int) -> None:
        if use.buckets:  # most tenants have no limited rates
            self._check_rate(tenant, use, "tokens_per_minute", 1.0)
            self._check_rate(tenant, use, "requests_per_minute", float(requests))
            self._take(use, "requests_per_minute", float(requests))

    def arrive(self, tenant: str) -> None:
        """Count an HTTP request of ``tenant`` to any route.

        Raises `BusyError` if the tenant's rate of HTTP requests is used up.
        """
        use = self._use(tenant)
        if use.buckets:
            self._check_rate(tenant, use, "http_requests_per_minute", 1.0)
            self._take(use, "http_requests_per_minute", 1.0)

    def charge(self, tenant: str, tokens: float) -> None:
        """Charge ``tenant`` for the tokens of a call."""
        self._take(self._use(tenant), "tokens_per_minute", tokens)

    def _take(self, use: _Use, rate: str, amount: float) -> None:
        if (bucket := use.buckets.get(rate)) is not None:
            bucket.take(amount, self._clock())

    def _check_rate(self, tenant: str, use: _Use, rate: str, amount: float) -> None:
        bucket = use.buckets.get(rate)
        wait = 0.0 if bucket is None else bucket.wait_s(amount, self._clock())
        if wait:
            raise BusyError(
                f"tenant {tenant!r} has used up its {rate.replace('_', ' ')}; try again in "
                f"{max(1, math.ceil(wait))} s",
                wait,
            )

    def _use(self, tenant: str) -> _Use:
        limits = self._limits_of().get(tenant, self._base)
        use = self._uses.get(tenant)
        if use is None or (use.limits is not limits and use.limits != limits):
            now = self._clock()
            if use is None and len(self._uses) >= self._most:
                self._forget_idle(now)
            use = self._uses[tenant] = _Use(limits, 0 if use is None else use.calls, now)
        return use

    def _forget_idle(self, now: float) -> None:
        self._uses = {name: use for name, use in self._uses.items() if not use.is_idle(now)}
        self._most = max(MOST_IDLE, 2 * len(self._uses))  # so that a new tenant costs little
