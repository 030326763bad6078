"""The retention and admission policies by their names in the settings. The simple policies `Ttl`
and `Cap` are defined here.
"""

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
    """The retention ``ttl``: blocks are evicted in the order of their age, and are protected for
    ``retention_ttl`` seconds.

    The time starts again when a call ends, and when a tool or a question to a human begins or ends.
    """

    name: ClassVar[str] = "ttl"
    expires: ClassVar[bool] = True

    def place(self, blocks: CachedBlocks) -> Place | None:
        return (float(blocks.calling), blocks.since)

    def expired(self, blocks: CachedBlocks, now: float) -> bool:
        return not blocks.calling and now - blocks.since > self.config.retention_ttl


class Cap(Admission):
    """The admission ``cap``: at most ``admission_cap`` programs are resident, in the order of their
    arrival. A program stays resident from its first call to its end.
    """

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
    """Make the retention policy of the settings; None for ``lru``. `SchedulerConfig` has already
    checked the name.
    """
    made = _RETENTIONS.get(config.retention)
    return None if made is None else made(config, learned)


def make_admission(
    config: SchedulerConfig, capacity: Capacity, learned: Learned
) -> Admission | None:
    """Make the admission policy of the settings for one engine; None for ``off``.

    A name with a colon, ``package.module:Class``, names a subclass of `Admission` in another
    package. Raises `ConfigError` if it cannot be loaded.
    """
    if config.admission == "off":
        return None
    made = _ADMISSIONS.get(config.admission) or _elsewhere(config.admission)
    return made(config, capacity, learned)


def _elsewhere(name: str) -> type[Admission]:
    module, _, attribute = name.partition(":")
    try:
        admission_class = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"cannot load admission {name!r}: {error}; available: off, {', '.join(_ADMISSIONS)}, "
            "or package.module:Class"
        ) from error
    if not (isinstance(admission_class, type) and issubclass(admission_class, Admission)):
        raise ConfigError(
            f"admission {name!r} is not a subclass of Admission; derive it from "
            "agentrt.scheduler.admission.Admission"
        )
    return admission_class
