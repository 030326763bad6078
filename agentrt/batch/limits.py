"""The limits of each run of a batch, and the share of ended runs after which a batch stops the
remaining runs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Integral, Real

from agentrt.batch.results import Over
from agentrt.errors import ConfigError
from agentrt.runtime.run import Run


@dataclass(frozen=True, slots=True)
class ItemLimits:
    """The limits of one run of an item. ``max_tokens_total`` limits the prompt and output tokens of
    all calls together, ``max_calls`` the number of calls, and ``timeout`` the seconds. None means
    no limit.

    A run that has reached its limit of tokens or calls is stopped when it begins another call. The
    call that exceeds the token limit is not aborted, because the number of its tokens is known only
    at its end. A run that has reached its ``timeout`` is stopped at once.
    """

    max_tokens_total: int | None = None
    max_calls: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens_total", "max_calls"):
            check_count(name, getattr(self, name), 1, none="no limit")
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise ConfigError(
                f"timeout must be a number above 0, got {self.timeout!r}; None means no limit"
            )

    def at_call(self, run: Run) -> Over | None:
        """Return the name of the limit that forbids the call that begins now, or None."""
        row = run.row
        if self.max_calls is not None and row.finished_calls + len(row.calls) > self.max_calls:
            return "max-calls"
        if self.max_tokens_total is not None and tokens_of(run) >= self.max_tokens_total:
            return "max-tokens-total"
        return None

    def at_end(self, run: Run) -> Over | None:
        """Return the name of the token limit if a run has exceeded it by the run's end, or None."""
        if self.max_tokens_total is not None and tokens_of(run) > self.max_tokens_total:
            return "max-tokens-total"
        return None


def check_count(
    name: str, value: object, least: int, *, most: int | None = None, none: str = ""
) -> None:
    """Raise `ConfigError` for a value that is not a whole number from ``least`` to ``most``. If
    ``none`` is set, None is allowed, and ``none`` is its meaning.
    """
    if value is None and none:
        return
    number = int(value) if isinstance(value, Integral) else least - 1
    if number < least or (most is not None and number > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        meaning = f"; None means {none}" if none else ""
        raise ConfigError(f"{name} must be a whole number {allowed}, got {value!r:.80}{meaning}")


def check_price(price: object) -> None:
    """Raise `ConfigError` for a price that is not a pair of finite numbers of at least 0."""
    match price:
        case (Real() as prompt, Real() as output):
            if all(0 <= float(each) < math.inf for each in (prompt, output)):
                return
    raise ConfigError(
        "price must be two numbers of at least 0, the prices of a million prompt tokens and of a "
        f"million output tokens, such as (0.15, 0.6), got {price!r:.80}; None means no price"
    )


def tokens_of(run: Run) -> int:
    """Return the number of prompt and output tokens of a run's calls that have ended."""
    return run.row.usage.prompt_tokens + run.row.usage.output_tokens


def read_share(value: str | float | None, name: str = "stop_when") -> float | None:
    """Read a share of a batch, such as ``99%`` or 0.99; None stays None. Raises `ConfigError` for a
    value that is not above 0 and at most 1. The message begins with ``name``.
    """
    if value is None:
        return None
    share = math.nan
    if isinstance(value, Real):
        share = float(value)
    elif isinstance(value, str) and (match := re.fullmatch(r"\s*([\d.]+)\s*(%?)\s*", value)):
        try:
            share = float(match[1]) / (100 if match[2] else 1)
        except ValueError:
            share = math.nan
    if not 0 < share <= 1:
        raise ConfigError(f"{name} {value!r:.80}: give a share such as 99% or 0.99")
    return share
