"""Grids of simulated runs: every setting with every seed, by every contender.

A run is described by plain values (`RunSpec`), so that it can be done in another process
(`agentrt.lab.commands.progress`) and said in a report. All of one seed see the same programs at the
same times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from agentrt.errors import ConfigError
from agentrt.lab.outcome import Ran, Summary
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.replay import UNSCALED, Scales, rescaled
from agentrt.lab.workloads.shape import WHOLE, Cut, ProgramShape, with_hints
from agentrt.lab.workloads.traces import Trace, named, read_programs, stem

DEFAULT_PROGRAMS = 1000
"""How many programs a generator makes when nobody says."""
GENERATORS: dict[str, str] = {}
"""The generators that are known, ``module:function`` by name; the function gets the name, a number
of programs and a seed. The package has none: a checkout's ``benchmarks.workloads`` registers its
own."""
_AXES = {"at-once": "programs at once", "rate": "arrivals, programs per second"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where programs come from: a generator's name, or a file with a trace.

    Programs are scaled, then ``cut``. ``format`` and ``tokenizer`` are how a file is read: see
    `read_programs`.
    """

    name: str
    path: Path | None = None
    scales: Scales = UNSCALED
    cut: Cut = WHOLE
    format: str = ""
    tokenizer: str = ""
    generator: str = ""
    """``module:function`` of a generator, for the process that makes its programs."""

    def __post_init__(self) -> None:
        if self.path is None and not self.generator:
            object.__setattr__(self, "generator", _generator(self.name))

    @classmethod
    def named(cls, text: str, **how: Any) -> Source:
        """A generator by its name, or ``FILE`` or ``FORMAT:FILE``. Raises `ConfigError`."""
        found = named(text, GENERATORS)
        if found is None:
            return cls(text, **how)
        return cls(stem(found[1]), found[1], format=found[0], **how)

    def programs(self, n: int | None, seed: int) -> Sequence[ProgramShape]:
        """So many programs, which the seed decides: a generator makes them, a trace is drawn from.

        Each program of a trace comes once before any comes again, under another id.
        """
        return _made(self, self.count(n), seed)

    def trace(self) -> Trace:
        """What is in the file. Raises `ConfigError` for one that cannot be read."""
        assert self.path is not None
        how = {"as_format": self.format, "tokenizer": self.tokenizer, "scales": self.scales}
        return _recorded(self.path, **how)

    def count(self, n: int | None) -> int:
        if n is not None:
            return n
        return DEFAULT_PROGRAMS if self.path is None else len(self.trace().programs)


def _generator(name: str) -> str:
    """The generator of this name. Raises `ConfigError` for an unknown one."""
    if name in GENERATORS:
        return GENERATORS[name]
    if not GENERATORS:
        raise ConfigError(
            f"{name!r}: there is no such file; give recorded programs as FILE or FORMAT:FILE"
        )
    near = get_close_matches(name, GENERATORS, n=1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"no workload is named {name!r}: {meant}there are {', '.join(GENERATORS)}")


@dataclass(frozen=True, slots=True)
class Setting:
    """What all policies of a comparison run under, but for the seed."""

    source: Source
    pressure: Pressure
    programs: int | None = None

    @property
    def label(self) -> str:
        """What tells it from others of the same source: the load, or how many come at once."""
        at_once = self.pressure.kind == "at-once"
        return str(self.programs or "all") if at_once else str(self.pressure)

    @property
    def axis(self) -> str:
        """What the label counts."""
        return _AXES.get(self.pressure.kind, "load")

    @property
    def count(self) -> int:
        if self.pressure.kind == "recorded":
            return len(self.source.trace().programs[: self.programs])
        return self.source.count(self.programs)

    def arrivals(self, machine: Machine, seed: int) -> Sequence[ProgramShape]:
        """The programs, each at its time; ``recorded`` ones come as they stand in the file."""
        if self.pressure.kind == "recorded":
            return self.source.trace().programs[: self.programs]
        programs = self.source.programs(self.programs, seed)
        return self.pressure.arrange(programs, machine.capacity_per_s(programs), seed)


# The runs of one seed follow each other in a worker, and want the same programs.
@lru_cache(maxsize=2)
def _made(source: Source, n: int, seed: int) -> Sequence[ProgramShape]:
    if source.path is None:
        module, _, function = source.generator.partition(":")
        programs = getattr(import_module(module), function)(source.name, n, seed)
        if source.scales != UNSCALED:
            programs = [rescaled(program, source.scales) for program in programs]
    else:
        programs = _drawn(source.trace().programs, n, seed)
    return [source.cut.of(program) for program in programs]


_recorded = lru_cache(maxsize=4)(read_programs)


def _drawn(programs: Sequence[ProgramShape], n: int, seed: int) -> list[ProgramShape]:
    """``n`` of the programs, in rounds that each hold all of them in an order of its own."""
    rng = Random(f"trace/{seed}")
    drawn: list[ProgramShape] = []
    while len(drawn) < n:
        again = len(drawn) // len(programs)
        one_round = rng.sample(programs, len(programs))
        drawn += [_again(program, again) for program in one_round[: n - len(drawn)]]
    return drawn


def _again(program: ProgramShape, again: int) -> ProgramShape:
    """The same program once more, as another one."""
    if not again:
        return program
    return replace(program, program_id=f"{program.program_id}#{again}")


# -- runs ------------------------------------------------------------------------------

One = TypeVar("One")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run, by plain values."""

    setting: Setting
    seed: int
    contender: Contender
    machine: Machine


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run and what came of it, in all and by its programs' type."""

    spec: RunSpec
    summary: Summary
    by_type: Mapping[str, Summary] = field(default_factory=dict)


def grid(
    settings: Sequence[Setting],
    everyone: Sequence[Contender],
    seeds: Sequence[int],
    machine: Machine,
) -> list[RunSpec]:
    """Every contender under every setting with every seed; those of one seed side by side.

    Raises `ConfigError` for a contender that cannot run on the machine.
    """
    machine.check(everyone)
    return [
        RunSpec(setting, seed, one, machine)
        for setting, (repeat, seed) in product(settings, enumerate(seeds))
        for one in turns(everyone, repeat)
    ]


def turns(everyone: Sequence[One], repeat: int) -> list[One]:
    """The order of a repeat: each repeat begins with another."""
    first = repeat % len(everyone)
    return [*everyone[first:], *everyone[:first]]


def do(spec: RunSpec) -> RunResult:
    """Do a run, in this process."""
    ran = run(spec, arrivals(spec))
    types = sorted({outcome.type for outcome in ran.outcomes})
    return RunResult(spec, ran.summary(), {name: ran.summary_of(name) for name in types})


def arrivals(spec: RunSpec) -> Sequence[ProgramShape]:
    """The programs of a run, each at its time."""
    arranged = spec.setting.arrivals(spec.machine, spec.seed)
    hints = spec.contender.hints
    return arranged if hints is None else with_hints(arranged, hints, spec.seed)


def run(spec: RunSpec, programs: Sequence[ProgramShape]) -> Ran:
    """The run, with all that came of each program."""
    return spec.machine.run(spec.contender, programs)
