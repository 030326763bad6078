"""What one tenant may use at most, and its share when there is not enough for all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from agentrt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; None is no limit.

    ``weight`` is its share among tenants that all want more. ``concurrency`` calls are in the
    engine at once, and more wait; with ``calls`` of its clients under way, the next request is
    refused. ``programs`` are its live ones: of clients, served ones, and LangGraph runs, so many
    of each. The rates are per minute; tokens are those that were computed, of prompts and
    outputs, and are charged when a call ends.
    """

    weight: float = 1.0
    concurrency: int | None = None
    calls: int = 1024
    programs: int = 4096
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


NAMES = tuple(field.name for field in fields(Limits))
_OPTIONAL = ("concurrency", "requests_per_minute", "tokens_per_minute")


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
