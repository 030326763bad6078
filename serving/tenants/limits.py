"""What each tenant may use at most, its share when there is not enough for all, and its use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from agentrt.errors import AgentrtError, ConfigError

_MINUTE_S = 60.0
_FULL_RETRY_S = 1.0
_MOST_NAMES = 1024
"""From so many tenants on, idle ones are forgotten: without keys anyone can make names up."""


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; None is no limit.

    ``weight`` is its share among tenants that all want more. ``concurrency`` calls are in the
    engine at once, and more wait; with ``calls`` of its clients under way, the next request is
    refused. ``programs`` are its live ones: of clients, served ones, and LangGraph runs, so many
    of each. The rates are per minute: ``requests`` start work, ``http_requests`` are all; tokens
    are those that were computed, of prompts and outputs, and are charged when a call ends.
    ``submitted`` are live programs that were sent as
    source; the names that begin with it are what each of these may use. ``threads``,
    ``assistants``, ``crons`` and ``store_mib`` are what a tenant may have in the database.
    """

    weight: float = 1.0
    concurrency: int | None = None
    calls: int = 1024
    programs: int = 4096
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    http_requests_per_minute: int | None = None
    submitted: int = 16
    submitted_memory_mib: int = 64
    submitted_seconds: int = 10
    submitted_calls: int = 1000
    submitted_tokens: int = 100_000
    threads: int | None = 100_000
    assistants: int | None = 10_000
    crons: int | None = 1_000
    store_mib: int | None = 256


NAMES = tuple(field.name for field in fields(Limits))
_RATES = ("requests_per_minute", "tokens_per_minute", "http_requests_per_minute")
_OPTIONAL = {field.name for field in fields(Limits) if "None" in str(field.type)}
"""None is no limit."""


def read_limits(values: Mapping[str, Any], base: Limits, where: str) -> Limits:
    """``base`` with the limits that are named. Raises `ConfigError`, which names ``where``."""
    for name, value in values.items():
        if name not in NAMES:
            raise ConfigError(f"{where}: there is no limit {name!r}; there is {', '.join(NAMES)}")
        _check(name, value, where)
    return replace(base, **values)


def _check(name: str, value: Any, where: str) -> None:
    if value is None and name in _OPTIONAL:
        return
    kinds = (int, float) if name == "weight" else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
        kind = "number" if name == "weight" else "whole number"
        raise ConfigError(f"{where}: {name} must be a {kind} above 0, got {value!r}")


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

    def is_full(self, now: float) -> bool:
        """Whether it is as if it had never been used."""
        self._fill(now)
        return self._level >= self._size

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._at) * self._per_s
        self._level, self._at = min(self._size, self._level + gained), now


@dataclass(slots=True)
class _Use:
    limits: Limits
    buckets: Mapping[str, Bucket]
    calls: int = 0

    def is_idle(self, now: float) -> bool:
        return not self.calls and all(one.is_full(now) for one in self.buckets.values())


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
        self._ask(use, tenant, 1)
        use.calls += calls

    def ask(self, tenant: str, requests: int = 1) -> None:
        """``tenant`` makes so many requests, whose end need not be told.

        Raises `BusyError` where one of its rates is used up, and then uses nothing.
        """
        self._ask(self._use(tenant), tenant, requests)

    def arrive(self, tenant: str) -> None:
        """A request of ``tenant`` comes over HTTP, whatever it asks for.

        Raises `BusyError` where there were too many.
        """
        self._take(self._use(tenant), tenant, "http_requests_per_minute", 1.0)

    def leave(self, tenant: str, calls: int = 1) -> None:
        """So many of the tenant's calls are over."""
        self._use(tenant).calls -= calls

    def charge(self, tenant: str, tokens: float) -> None:
        """A call of ``tenant`` has used so many tokens."""
        bucket = self._use(tenant).buckets.get("tokens_per_minute")
        if bucket is not None:
            bucket.take(tokens, self._clock())

    def calls(self, tenant: str) -> int:
        """How many of the tenant's calls are under way."""
        use = self._uses.get(tenant)
        return 0 if use is None else use.calls

    def _use(self, tenant: str) -> _Use:
        limits, use = self.limits(tenant), self._uses.get(tenant)
        if use is None or (use.limits is not limits and use.limits != limits):
            now = self._clock()
            if len(self._uses) >= _MOST_NAMES:
                self._forget_idle(now)
            rates = {name: getattr(limits, name) for name in _RATES}
            buckets = {
                name: Bucket(rate, rate / _MINUTE_S, now)
                for name, rate in rates.items()
                if rate is not None
            }
            use = self._uses[tenant] = _Use(limits, buckets, 0 if use is None else use.calls)
        return use

    def _forget_idle(self, now: float) -> None:
        for name in [name for name, use in self._uses.items() if use.is_idle(now)]:
            del self._uses[name]

    def _ask(self, use: _Use, tenant: str, requests: int) -> None:
        if use.buckets:
            self._check_rate(use, tenant, "tokens_per_minute", 1.0)
        self._take(use, tenant, "requests_per_minute", float(requests))

    def _take(self, use: _Use, tenant: str, rate: str, amount: float) -> None:
        if not use.buckets:
            return
        self._check_rate(use, tenant, rate, amount)
        bucket = use.buckets.get(rate)
        if bucket is not None:
            bucket.take(amount, self._clock())

    def _check_rate(self, use: _Use, tenant: str, rate: str, amount: float) -> None:
        bucket = use.buckets.get(rate)
        wait = 0.0 if bucket is None else bucket.wait_s(amount, self._clock())
        if wait:
            raise BusyError(
                f"tenant {tenant!r} has used up its {rate.replace('_', ' ')}; ask again in "
                f"{max(1, math.ceil(wait))} s",
                wait,
            )
