"""Contenders of other projects: stock vLLM behind a gate, and agentrt with another scheduler
class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from typing_extensions import override

from agentrt.lab.backends.base import Backend, BackendWrapper
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.runs.contenders import RUN, Contender
from benchmarks.rivals.gates import Gate, GatedBackend

GATE, SCHEDULER = "a gate in front of the engine", "a scheduler class of its own"
ALL_RUN = (*RUN, GATE, SCHEDULER)
"""The parts of contenders that `Contender.run` applies, with those of rivals."""


@dataclass(frozen=True, slots=True)
class GatedContender(Contender):
    """Stock vLLM behind a gate, which ``gate`` makes from the sizes of an engine."""

    gate: Callable[[VirtualOptions], Gate] = field(kw_only=True)

    @property
    @override
    def parts(self) -> list[str]:
        return [GATE, *super(GatedContender, self).parts]

    @override
    def backend(self, options: VirtualOptions, times: StepTimeModel, **fleet: Any) -> Backend:
        engine = Contender.backend(self, options, times, **fleet)
        return GatedBackend(engine, self.gate(self.sized(options)))


@dataclass(frozen=True, slots=True)
class OwnScheduler(Contender):
    """A subclass of agentrt's scheduler class, named by ``scheduler`` (``module:class``)."""

    scheduler: str = field(kw_only=True)

    @property
    @override
    def parts(self) -> list[str]:
        return [SCHEDULER, *super(OwnScheduler, self).parts]

    @property
    @override
    def on_engines(self) -> bool:
        return False

    @override
    def backend(self, options: VirtualOptions, times: StepTimeModel, **fleet: Any) -> Backend:
        module, _, attribute = self.scheduler.partition(":")
        scheduler = getattr(import_module(module), attribute)
        sizes = self.sized(options)
        return Virtual(self.scheduling, sizes, times, scheduler_cls=scheduler, **fleet)


def wrapper_of(contender: Contender, options: VirtualOptions) -> BackendWrapper:
    """Return a function that puts the contender's gate, if it has one, in front of a backend with
    these sizes.
    """
    if not isinstance(contender, GatedContender):
        return lambda backend: backend
    gate = contender.gate(options)
    return lambda backend: GatedBackend(backend, gate)
