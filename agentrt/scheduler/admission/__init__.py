"""Admission control: which programs may use the KV cache now. The admission policies by name."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract

from agentrt.errors import ConfigError
from agentrt.scheduler.admission.base import Admission, Admit, Cap, Capacity, Keep
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned

__all__ = ["Admission", "Admit", "Cap", "Capacity", "Keep", "WorkingSet", "make_admission"]

_ADMISSIONS: dict[str, type[Admission]] = {policy.name: policy for policy in (Cap, WorkingSet)}


def make_admission(
    config: SchedulerConfig, capacity: Capacity, learned: Learned
) -> Admission | None:
    """Return the admission policy that the settings name, for one engine; None for ``off``.

    A name with a colon, ``package.module:Class``, names a subclass of `Admission` in another
    package. Raises `ConfigError` if it cannot be loaded, or is not a complete subclass.
    """
    if config.admission == "off":
        return None
    made = _ADMISSIONS.get(config.admission) or _load(config.admission)
    return made(config, capacity, learned)


def _load(name: str) -> type[Admission]:
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except Exception as error:
        raise ConfigError(
            f"cannot load admission {name!r}: {error}; available: off, {', '.join(_ADMISSIONS)}, "
            "or package.module:Class"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Admission)) or isabstract(loaded):
        raise ConfigError(
            f"admission {name!r} is not a complete subclass of "
            "agentrt.scheduler.admission.Admission; derive it from that class, and implement all "
            "abstract methods"
        )
    return loaded
