"""Retention and admission by their names in the settings, and the ones beside the default's."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from agentrt.errors import ConfigError
from agentrt.scheduler.admission import Admission, Admit, Capacity, Keep
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.records import CachedBlocks, EngineProgram, QueuedCall
from agentrt.scheduler.retention import Cost, Place, Retention
from agentrt.scheduler.working_set import WorkingSet


class Ttl(Retention):
    """First in, first out; past ``retention_ttl`` seconds, no protection.

    A call's end, a tool's or a human's beginning and their return start the time anew.
    """

    name: ClassVar[str] = "ttl"
    expires: ClassVar[bool] = True

    def place(self, blocks: CachedBlocks) -> Place | None:
        return (float(blocks.calling), blocks.since)

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        return not blocks.calling and now - blocks.since > self.config.retention_ttl


class Cap(Admission):
    """At most ``admission_cap`` programs, from their first call to their end, as they arrived."""

    name: ClassVar[str] = "cap"

    def rank(self, call: QueuedCall) -> tuple[Any, ...]:
        return (call.program.started_at, call.key[2])

    def may_stay(self, call: QueuedCall) -> bool:
        return True

    def decide(self, call: QueuedCall, now: float, running: int) -> Admit | Keep:
        if running and len(self.residents) >= self.config.admission_cap:
            return Keep()
        return Admit(call.program)

    def program_ended(self, row: EngineProgram, now: float) -> None:
        self.expel(row)


_RETENTIONS: dict[str, type[Retention]] = {policy.name: policy for policy in (Ttl, Cost)}
_ADMISSIONS: dict[str, type[Admission]] = {policy.name: policy for policy in (Cap, WorkingSet)}


def make_retention(config: SchedulerConfig, learned: Learned) -> Retention | None:
    """A fresh retention policy, None for ``lru``; the settings have checked the name."""
    made = _RETENTIONS.get(config.retention)
    return None if made is None else made(config, learned)


def make_admission(
    config: SchedulerConfig, capacity: Capacity, learned: Learned
) -> Admission | None:
    """A fresh admission for one engine, None for ``off``.

    A name with a colon, ``package.module:Class``, is a subclass of `Admission` elsewhere. Raises
    `ConfigError` for one that is not there.
    """
    if config.admission == "off":
        return None
    made = _ADMISSIONS.get(config.admission) or _elsewhere(config.admission)
    return made(config, capacity, learned)


def _elsewhere(name: str) -> type[Admission]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"admission {name!r} does not load: {error}; known: off, {', '.join(_ADMISSIONS)}, "
            "or package.module:Class"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Admission)):
        raise ConfigError(f"admission {name!r} is no subclass of Admission")
    return found
