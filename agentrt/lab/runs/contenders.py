"""Who is compared, by name: ours under some settings, vLLM without us, and registered rivals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

from agentrt.errors import ConfigError
from agentrt.lab.backends.gates import Gate
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.oracles import KNOWING, check_policy, is_policy, policy_names
from agentrt.lab.outcome import Ran
from agentrt.lab.program import Stock
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler.config import ADMISSIONS, RETENTIONS, SchedulerConfig

BASELINE, STOCK, DEFAULT = "fcfs", "stock", "default"
_STOCKS = {
    STOCK: Stock(),
    "priority-service": Stock("service"),
    "priority-path": Stock("path"),
}
HINTED, AMPLE = "hints", "ample"
"""What a name may have after a plus: it is told guesses of sizes, it has much more memory."""
DEFAULT_HINTS = 0.5
"""How well guesses correlate with the truth when nobody says: see `with_hints`."""
_TIMES_AMPLE = 16
_OURS = SchedulerConfig()


def how() -> str:
    """The names that there are, for people."""
    rivals = ", ".join(rival.shown for rival in RIVALS.values())
    return (
        f"{', '.join(policy_names())}, with a plus before what else is on, as in fcfs+cost, "
        f"adaptive+memory or atlas+{HINTED} (which is told guesses of sizes); {DEFAULT}, which is "
        f"what agentrt run and serve use ({'+'.join(_named(_OURS).values())}); of vLLM "
        f"alone {', '.join(_STOCKS)}; {f'the rivals {rivals}; ' if rivals else ''}"
        f"or any of these and +{AMPLE}, with {_TIMES_AMPLE} times the memory"
    )


def _named(config: SchedulerConfig) -> dict[str, Any]:
    """The settings that have names."""
    return {name: getattr(config, name) for name in ("policy", "retention", "admission")}


@dataclass(frozen=True, slots=True)
class Contender:
    """Who schedules an engine, behind which gate, with how much of the memory.

    ``hints`` says how well the guesses of programs' sizes that it is told correlate with the
    truth; None: it is told no guess. ``gate`` makes what stands before an engine of some size, and
    ``scheduler`` names a subclass of our scheduler in its place (``module:class``).
    """

    name: str
    scheduling: SchedulerConfig | Stock
    hints: float | None = None
    gate: Callable[[VirtualOptions], Gate] | None = None
    memory: int = 1
    scheduler: str = ""

    @property
    def stock(self) -> Stock | None:
        return self.scheduling if isinstance(self.scheduling, Stock) else None

    @property
    def config(self) -> SchedulerConfig | None:
        return None if isinstance(self.scheduling, Stock) else self.scheduling

    @property
    def on_engines(self) -> bool:
        """Whether a real engine can run it: none knows sizes, or has a rival's scheduler."""
        return self.config is None or not (self.scheduler or self.config.policy in KNOWING)

    def sized(self, options: VirtualOptions) -> VirtualOptions:
        """The engine's size for it."""
        return replace(options, kv_blocks=self.memory * options.kv_blocks)

    def make_gate(self, options: VirtualOptions) -> Gate | None:
        """What holds calls back before an engine of this size."""
        return None if self.gate is None else self.gate(options)

    def run(
        self,
        programs: Sequence[ProgramShape],
        options: VirtualOptions,
        times: StepTimeModel,
        **fleet: Any,
    ) -> Ran:
        """Its run in virtual time; ``fleet`` are the replicas and the router of `Virtual`."""
        options = self.sized(options)
        scheduler = _loaded(self.scheduler) if self.scheduler else None
        engine = Virtual(self.scheduling, options, times, scheduler_cls=scheduler, **fleet)
        return drive(engine, programs, self.make_gate(options))


class Rival(NamedTuple):
    """A rival's rule: how its name is ``shown``, and what makes the contender.

    ``make`` gets the contender's whole name, and what stands in it after a colon; it returns None
    if that cannot be.
    """

    shown: str
    make: Callable[[str, str], Contender | None]


RIVALS: dict[str, Rival] = {}
"""The rivals that are known, by the name before a colon. The package has none: a checkout's
``benchmarks.rivals`` registers its own."""


def contender(name: str, ours: SchedulerConfig = _OURS, hints: float = DEFAULT_HINTS) -> Contender:
    """The contender of a name; a policy has the settings of ``ours``, and hints as good as
    ``hints``. Raises `ConfigError` for a name that says nothing.
    """
    first, *more = name.split("+")
    told, ample = (_taken(more, [one]) for one in (HINTED, AMPLE))
    found = Contender(
        name,
        _STOCKS.get(first) or _OURS,
        hints if told else None,
        memory=_TIMES_AMPLE if ample else 1,
    )
    kind, _, number = first.partition(":")
    if kind in RIVALS:
        rival = RIVALS[kind].make(name, number)
        if rival is None:
            more = [name]
        else:
            found = replace(rival, hints=found.hints, memory=found.memory)
    elif first == DEFAULT:
        found = replace(found, scheduling=replace(ours, **_named(_OURS)))
    elif is_policy(first):
        check_policy(first)
        retention, admission = _taken(more, RETENTIONS), _taken(more, ADMISSIONS)
        ours = replace(
            ours, policy=first, retention=retention or "lru", admission=admission or "off"
        )
        found = replace(found, scheduling=ours)
    elif first not in _STOCKS:
        more = [name]
    if more:
        raise ConfigError(f"unknown policy {name!r}; known: {how()}")
    return found


def contenders(
    names: Iterable[str], ours: SchedulerConfig = _OURS, hints: float = DEFAULT_HINTS
) -> list[Contender]:
    """Those named, each once."""
    return [contender(name, ours, hints) for name in dict.fromkeys(names)]


def check_on_engines(everyone: Iterable[Contender]) -> None:
    """Raise `ConfigError` for one that a real engine cannot run."""
    for one in everyone:
        if not one.on_engines:
            raise ConfigError(f"{one.name!r} runs in virtual time only; leave it out")


def check_on_one_engine(everyone: Sequence[Contender]) -> None:
    """Raise `ConfigError` for one that a real engine cannot run, or that wants one of its own."""
    check_on_engines(everyone)
    if ample := next((one.name for one in everyone if one.memory > 1), None):
        raise ConfigError(f"{ample!r}: all share an engine here; see python -m benchmarks memory")


def _taken(words: list[str], known: Sequence[str]) -> str | None:
    """Take the first that is known out of those left."""
    found = next((word for word in words if word in known), None)
    if found is not None:
        words.remove(found)
    return found


def _loaded(name: str) -> type[Any]:
    module, _, attribute = name.partition(":")
    scheduler: type[Any] = getattr(import_module(module), attribute)
    return scheduler
