"""What each tenant may use at most, its share when there is not enough for all, and its use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from agentrt.errors import AgentrtError, ConfigError
from agentrt.serving.settings import fault_in

_MINUTE_S = 60.0
_FULL_RETRY_S = 1.0

Count = Annotated[int, Field(gt=0, strict=True)]


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; None is no limit.

    ``weight`` is its share among tenants that all want more. ``concurrency`` calls are in the
    engine at once, and more wait; with ``calls`` of its clients under way, the next request is
    refused. ``programs`` are its live ones: of clients, served ones, and LangGraph runs, so many
    of each. The rates are per minute: ``requests`` start work, ``http_requests`` are all; tokens
    are those that were computed, of prompts and outputs, and are charged when a call ends.
    ``submitted`` are live programs that were sent as source, and ``submitted_…`` what each of
    them may use. ``threads``, ``assistants``, ``crons`` and ``store_mib`` are what a tenant may
    have in the database, ``files_mib`` the size of its files and ``batches`` the number of its
    batches that have not ended.
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


def read_limits(values: Mapping[str, Any], base: Limits, where: str) -> Limits:
    """``base`` with the limits that are named. Raises `ConfigError`, which names ``where``."""
    if unknown := [name for name in values if name not in NAMES]:
        raise ConfigError(f"{where}: there is no limit {unknown[0]!r}; there is {', '.join(NAMES)}")
    try:
        return _LIMITS.validate_python({**asdict(base), **values})
    except ValidationError as error:
        raise ConfigError(f"{where}: {fault_in(error)}") from None


class BusyError(AgentrtError):
    """A tenant is at its limit; ``retry_after`` seconds from now it may ask again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = max(1, math.ceil(retry_after))


class Bucket:
    """A token bucket: ``per_s`` comes in each second, up to its ``size``.

    It may be overdrawn; whoever comes next waits until it is filled again.
    """

    def __init__(self, size: float, per_s: float, now: float) -> None:
        self._size, self._per_s = size, per_s
        self._level, self._at = size, now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` is there."""
        self._fill(now)
        return max(0.0, (min(amount, self._size) - self._level) / self._per_s)

    def take(self, amount: float, now: float) -> None:
        """Use ``amount``, whether it is there or not."""
        self._fill(now)
        self._level -= amount

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self._per_s
        self._level, self._at = min(self._size, self._level + gained), now


class _Use:
    """What one tenant uses: its open ``calls``, and a bucket for each of its rates."""

    def __init__(self, limits: Limits, calls: int, now: float) -> None:
        self.limits = limits
        self.calls = calls
        rates = {name: getattr(limits, name) for name in _RATES}
        self.buckets = {
            name: Bucket(rate, rate / _MINUTE_S, now)
            for name, rate in rates.items()
            if rate is not None
        }


class Tenants:
    """The tenants' limits and use. ``limits_of`` has the limits of those that have their own."""

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

    def limits(self, tenant: str) -> Limits:
        """The limits of ``tenant`` as they are now."""
        return self._limits_of().get(tenant, self._base)

    def enter(self, tenant: str, calls: int = 1) -> None:
        """``tenant`` begins so many calls with one request; `leave` ends them.

        Raises `BusyError` where that would be over a limit, and nothing begins.
        """
        use = self._use(tenant)
        if use.calls + calls > use.limits.calls:
            raise BusyError(
                f"tenant {tenant!r} has {use.calls} calls under way, of {use.limits.calls} that "
                "it may have; wait for some to end",
                _FULL_RETRY_S,
            )
        self.ask(tenant)
        use.calls += calls

    def leave(self, tenant: str, calls: int = 1) -> None:
        """So many of the tenant's calls are over."""
        self._use(tenant).calls -= calls

    def calls(self, tenant: str) -> int:
        """How many of the tenant's calls are under way."""
        use = self._uses.get(tenant)
        return 0 if use is None else use.calls

    def ask(self, tenant: str, requests: int = 1) -> None:
        """``tenant`` makes so many requests, which need no `leave`.

        Raises `BusyError` where one of its rates is used up, and then uses nothing.
        """
        use = self._use(tenant)
        if use.buckets:  # most have none
            self._check_rate(tenant, use, "tokens_per_minute", 1.0)
            self._check_rate(tenant, use, "requests_per_minute", float(requests))
            self._take(use, "requests_per_minute", float(requests))

    def arrive(self, tenant: str) -> None:
        """A request of ``tenant`` comes over HTTP, whatever it asks for.

        Raises `BusyError` where there were too many.
        """
        use = self._use(tenant)
        if use.buckets:
            self._check_rate(tenant, use, "http_requests_per_minute", 1.0)
            self._take(use, "http_requests_per_minute", 1.0)

    def charge(self, tenant: str, tokens: float) -> None:
        """A call of ``tenant`` has used so many tokens."""
        self._take(self._use(tenant), "tokens_per_minute", tokens)

    def _take(self, use: _Use, rate: str, amount: float) -> None:
        if (bucket := use.buckets.get(rate)) is not None:
            bucket.take(amount, self._clock())

    def _check_rate(self, tenant: str, use: _Use, rate: str, amount: float) -> None:
        bucket = use.buckets.get(rate)
        wait = 0.0 if bucket is None else bucket.wait_s(amount, self._clock())
        if wait:
            raise BusyError(
                f"tenant {tenant!r} has used up its {rate.replace('_', ' ')}; ask again in "
                f"{max(1, math.ceil(wait))} s",
                wait,
            )

    def _use(self, tenant: str) -> _Use:
        limits, use = self.limits(tenant), self._uses.get(tenant)
        if use is None or (use.limits is not limits and use.limits != limits):
            now = self._clock()
            use = self._uses[tenant] = _Use(limits, 0 if use is None else use.calls, now)
        return use
