"""Which programs may use the engine's KV cache now: what decides it, by name.

``off`` is no admission at all: nothing of vLLM's is replaced for it. A name with a colon,
``package.module:Class``, is a subclass of `Admission` elsewhere.
"""

from __future__ import annotations

from importlib import import_module

from agentrt.errors import ConfigError
from agentrt.scheduler.admission.base import Admission, Capacity
from agentrt.scheduler.admission.cap import Cap
from agentrt.scheduler.admission.memory import WorkingSet
from agentrt.scheduler.config import SchedulerConfig

_BY_NAME: dict[str, type[Admission]] = {one.name: one for one in (Cap, WorkingSet)}


def make_admission(config: SchedulerConfig, capacity: Capacity) -> Admission | None:
    """A fresh admission for one engine, None for ``off``. Raises `ConfigError` for no such."""
    if config.admission == "off":
        return None
    return _class(config.admission)(config, capacity)


def _class(name: str) -> type[Admission]:
    if name in _BY_NAME:
        return _BY_NAME[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"admission {name!r} does not load: {error}; known: off, {', '.join(_BY_NAME)}, "
            "or package.module:Class"
        ) from error
    if not (isinstance(found, type) and issubclass(found, Admission)):
        raise ConfigError(f"admission {name!r} is no subclass of Admission")
    return found


__all__ = ["Admission", "Capacity", "make_admission"]
