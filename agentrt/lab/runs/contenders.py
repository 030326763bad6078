"""The contenders of comparisons, by name: agentrt's policies, stock vLLM, and registered rivals."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

from agentrt.errors import ConfigError
from agentrt.lab.backends.base import Backend
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.driver import drive
from agentrt.lab.engine.host_memory import HostMemory
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.oracles import KNOWING, check_policy, is_policy, policy_names
from agentrt.lab.outcome import RunOutcome
from agentrt.lab.program import Stock
from agentrt.lab.workloads.shape import ProgramShape
from agentrt.scheduler.config import ADMISSIONS, RETENTIONS, SchedulerConfig

BASELINE, STOCK, DEFAULT = "fcfs", "stock", "default"
_STOCKS = {
    STOCK: Stock(),
    "priority-service": Stock("service"),
    "priority-path": Stock("path"),
}
HINTED, AMPLE, OFFLOADED = "hints", "ample", "offload"
"""Suffixes of a contender's name after a plus sign. The suffixes mean: with size hints, with much
more memory, and with vLLM's offload to host memory.
"""
DEFAULT_HINTS = 0.5
"""Default correlation between size hints and true sizes: see `with_hints`."""
_TIMES_AMPLE = 16
_HOST_SIZE = 2.0
"""The default size of host memory as a multiple of the KV cache. A GPU with 80 GB, an 8B model in
16 bits and 128 GB for offloading have about this ratio.
"""
_OURS = SchedulerConfig()
SIZE_HINTS, TRUE_SIZES = "size hints", "the true sizes of programs"
RUN = (
    TRUE_SIZES,
    "priorities of calls",
    "more memory",
    "host memory",
)
"""The parts of contenders that `Contender.run` applies. Size hints belong to the programs that it
gets.
"""


def how() -> str:
    """Describe all names of contenders, for help texts and errors."""
    rivals = ", ".join(rival.shown for rival in RIVALS.values())
    return (
        f"{', '.join(policy_names())}, with a retention or admission after a plus, as in "
        f"fcfs+cost or adaptive+memory, or with +{HINTED} for size hints; {DEFAULT}, the defaults "
        f"of agentrt serve ({'+'.join(_named(_OURS).values())}); {', '.join(_STOCKS)}, which "
        f"are vLLM's own; {f'the rivals {rivals}; ' if rivals else ''}"
        f"or any of these with +{AMPLE} for {_TIMES_AMPLE} times the memory, or with +{OFFLOADED} "
        f"for vLLM's offload to host memory of {_HOST_SIZE:g} times the KV cache, +{OFFLOADED}:X "
        "for X times"
    )


def _named(config: SchedulerConfig) -> dict[str, Any]:
    """Return the settings that a contender's name selects."""
    return {name: getattr(config, name) for name in ("policy", "retention", "admission")}


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to schedule an engine, with a factor for the engine's memory.

    ``hints`` is the correlation between size hints and true sizes; None means no hints. ``memory``
    is the factor for the size of the KV cache. ``host`` is the host memory to which vLLM offloads.
    """

    name: str
    scheduling: SchedulerConfig | Stock
    hints: float | None = None
    memory: int = 1
    host: HostMemory | None = None

    @property
    def stock(self) -> Stock | None:
        return self.scheduling if isinstance(self.scheduling, Stock) else None

    @property
    def config(self) -> SchedulerConfig | None:
        return None if isinstance(self.scheduling, Stock) else self.scheduling

    @property
    def on_engines(self) -> bool:
        """Whether a real engine can run this contender. A real engine cannot run policies that know
        the true sizes, or the modelled host memory.
        """
        return self.host is None and (self.config is None or self.config.policy not in KNOWING)

    @property
    def parts(self) -> list[str]:
        """The names of the contender's parts: what a run must apply besides the settings of vLLM's
        or agentrt's scheduler, such as the true sizes of programs, or host memory. A run without
        one of these parts is not a run of this contender.
        """
        present = (
            self.config is not None and self.config.policy in KNOWING,
            self.stock not in (None, Stock()),
            self.memory > 1,
            self.host is not None,
            self.hints is not None,
        )
        return list(compress((*RUN, SIZE_HINTS), present))

    def sized(self, options: VirtualOptions) -> VirtualOptions:
        """Return the sizes of the engine with this contender's memory."""
        return replace(options, kv_blocks=self.memory * options.kv_blocks, host=self.host)

    def backend(self, options: VirtualOptions, times: StepTimeModel, **fleet: Any) -> Backend:
        """Return an engine of this size, but with the contender's memory, in virtual time.
        ``fleet`` has the replicas and the router of `Virtual`.
        """
        return Virtual(self.scheduling, self.sized(options), times, **fleet)

    def run(
        self,
        programs: Sequence[ProgramShape],
        options: VirtualOptions,
        times: StepTimeModel,
        **fleet: Any,
    ) -> RunOutcome:
        """Run programs in virtual time. The other arguments are those of `backend`."""
        return drive(self.backend(options, times, **fleet), programs)


class Rival(NamedTuple):
    """A policy of a rival system. ``shown`` is the policy's name in help texts.

    ``make`` is a function of a contender's whole name and of the part after the colon. It returns
    the contender, or None for an invalid name.
    """

    shown: str
    make: Callable[[str, str], Contender | None]


RIVALS: dict[str, Rival] = {}
"""The registered rivals, by the name before a colon. The package itself registers none;
``benchmarks.rivals`` in a checkout registers its own.
"""


def contender(name: str, ours: SchedulerConfig = _OURS, hints: float = DEFAULT_HINTS) -> Contender:
    """Return the contender with this name.

    ``ours`` has the settings of agentrt's scheduler that the name does not select. ``hints`` is the
    correlation of size hints with the true sizes. Raises `ConfigError` for an unknown name, and for
    invalid host memory.
    """
    first, *suffixes = name.split("+")
    is_hinted, ample = (_taken(suffixes, [suffix]) for suffix in (HINTED, AMPLE))
    host = _host(suffixes)
    result = Contender(
        name,
        _STOCKS.get(first) or _OURS,
        hints if is_hinted else None,
        memory=_TIMES_AMPLE if ample else 1,
        host=host,
    )
    kind, _, number = first.partition(":")
    if kind in RIVALS:
        rival = RIVALS[kind].make(name, number)
        if rival is None:
            suffixes = [name]
        else:
            result = replace(rival, hints=result.hints, memory=result.memory, host=host)
    elif first == DEFAULT:
        result = replace(result, scheduling=replace(ours, **_named(_OURS)))
    elif is_policy(first):
        check_policy(first)
        retention, admission = _taken(suffixes, RETENTIONS), _taken(suffixes, ADMISSIONS)
        ours = replace(
            ours, policy=first, retention=retention or "lru", admission=admission or "off"
        )
        result = replace(result, scheduling=ours)
    elif first not in _STOCKS:
        suffixes = [name]
    if suffixes:
        raise ConfigError(f"unknown policy {name!r}; known: {how()}")
    return result


def contenders(
    names: Iterable[str], ours: SchedulerConfig = _OURS, hints: float = DEFAULT_HINTS
) -> list[Contender]:
    """Return the contenders with these names, without duplicates."""
    return [contender(name, ours, hints) for name in dict.fromkeys(names)]


def check_parts(contenders: Iterable[Contender], able: Collection[str] = ()) -> None:
    """Raise `ConfigError` for a contender with a part (`Contender.parts`) that is not in ``able``:
    the caller would run something else under this contender's name.
    """
    for contender in contenders:
        lacking = next((part for part in contender.parts if part not in able), None)
        if lacking is not None:
            raise ConfigError(
                f"{contender.name!r} needs {lacking}, which this command does not apply; leave out "
                f"{contender.name!r}, or use python -m benchmarks policies --virtual, which runs "
                "every policy"
            )


def check_on_engines(contenders: Iterable[Contender]) -> None:
    """Raise `ConfigError` for a contender that a real engine cannot run."""
    for contender in contenders:
        if not contender.on_engines:
            raise ConfigError(f"{contender.name!r} runs in virtual time only; leave it out")


def check_on_one_engine(contenders: Sequence[Contender]) -> None:
    """Raise `ConfigError` for a contender that a real engine cannot run, or that cannot share an
    engine with the other contenders.
    """
    check_on_engines(contenders)
    if ample := next((each.name for each in contenders if each.memory > 1), None):
        raise ConfigError(
            f"{ample!r} needs an engine with more memory, but all contenders share one engine "
            "here; leave it out, or use python -m benchmarks memory"
        )


def _host(suffixes: list[str]) -> HostMemory | None:
    """Remove the suffix for offloading from ``suffixes``, and return the host memory; None if there
    is no such suffix. Raises `ConfigError` for an invalid size.
    """
    match = next((word for word in suffixes if word.partition(":")[0] == OFFLOADED), None)
    if match is None:
        return None
    suffixes.remove(match)
    _, colon, number = match.partition(":")
    try:
        return HostMemory(float(number) if colon else _HOST_SIZE)
    except ValueError:
        raise ConfigError(
            f"+{match}: {number!r} is not a number; give the size of host memory as a multiple of "
            f"the KV cache, as in +{OFFLOADED}:2"
        ) from None


def _taken(words: list[str], known: Sequence[str]) -> str | None:
    """Remove the first known word from ``words``, and return it; None if there is none."""
    match = next((word for word in words if word in known), None)
    if match is not None:
        words.remove(match)
    return match
