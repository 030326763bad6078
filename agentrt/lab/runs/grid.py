"""Grids of simulated runs: every contender under every setting with every seed.

A run is described by plain values (`RunSpec`), so that another process can do the run
(`agentrt.lab.commands.progress`), and a report can describe the run. All runs with the same setting
and seed have the same programs at the same times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from agentrt.errors import ConfigError
from agentrt.lab.outcome import RunOutcome, Summary
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.replay import UNSCALED, Scales
from agentrt.lab.workloads.shape import ProgramShape, with_hints
from agentrt.lab.workloads.traces import Trace, named, read_programs, stem


@dataclass(frozen=True, slots=True)
class Source:
    """A source of programs: a file with a trace, whose programs are scaled by ``scales``.
    ``format`` is the argument ``as_format`` of `read_programs`. A subclass may have sources without
    a ``path``.
    """

    name: str
    path: Path | None = None
    scales: Scales = UNSCALED
    format: str = ""

    @classmethod
    def named(cls, text: str, **how: Any) -> Source:
        """Return the source for ``FILE`` or ``FORMAT:FILE``. Raises `ConfigError` for an unknown
        file.
        """
        location = named(text)
        if location is None:
            raise ConfigError(
                f"the file {text!r} does not exist; give recorded programs as FILE or FORMAT:FILE"
            )
        return cls(stem(location[1]), location[1], format=location[0], **how)

    def programs(self, n: int | None, seed: int) -> Sequence[ProgramShape]:
        """Return ``n`` programs, which depend on the seed."""
        return _made(self, self.count(n), seed)

    def make(self, n: int, seed: int) -> Sequence[ProgramShape]:
        """Draw ``n`` programs at random: each program is used once before any program is used again
        under another id.
        """
        return _drawn(self.trace().programs, n, seed)

    def trace(self) -> Trace:
        """Return the trace in the file. Raises `ConfigError` if it cannot be read."""
        assert self.path is not None
        return recorded(self.path, as_format=self.format, scales=self.scales)

    def count(self, n: int | None) -> int:
        return len(self.trace().programs) if n is None else n


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions that all policies of a comparison share, except the seed."""

    source: Source
    pressure: Pressure
    programs: int | None = None

    @property
    def label(self) -> str:
        """The load, or the number of programs that arrive at once. The settings of one source have
        different labels.
        """
        at_once = self.pressure.kind == "at-once"
        return str(self.programs or "all") if at_once else str(self.pressure)

    @property
    def count(self) -> int:
        if self.pressure.kind == "recorded":
            return len(self.source.trace().programs[: self.programs])
        return self.source.count(self.programs)

    def arrivals(self, machine: Machine, seed: int) -> Sequence[ProgramShape]:
        """Return the programs with their arrival times. With the pressure ``recorded``, the times
        are those in the file.
        """
        if self.pressure.kind == "recorded":
            return self.source.trace().programs[: self.programs]
        programs = self.source.programs(self.programs, seed)
        return self.pressure.arrange(programs, machine.capacity_per_s(programs), seed)


# The result is cached, because consecutive runs of a worker often need the same programs.
@lru_cache(maxsize=2)
def _made(source: Source, n: int, seed: int) -> Sequence[ProgramShape]:
    return source.make(n, seed)


recorded = lru_cache(maxsize=4)(read_programs)


def _drawn(programs: Sequence[ProgramShape], n: int, seed: int) -> list[ProgramShape]:
    """Draw ``n`` programs in rounds. Each round has all programs, in a new random order; the last
    round ends when ``n`` programs are drawn.
    """
    rng = Random(f"trace/{seed}")
    drawn: list[ProgramShape] = []
    while len(drawn) < n:
        again = len(drawn) // len(programs)
        one_round = rng.sample(programs, len(programs))
        drawn += [_again(program, again) for program in one_round[: n - len(drawn)]]
    return drawn


def _again(program: ProgramShape, again: int) -> ProgramShape:
    """Return the same program under another id, for a later round."""
    if not again:
        return program
    return replace(program, program_id=f"{program.program_id}#{again}")


# -- runs ------------------------------------------------------------------------------

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The description of one run by plain values."""

    setting: Setting
    seed: int
    contender: Contender
    machine: Machine


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run: a summary of all programs."""

    spec: RunSpec
    summary: Summary


def grid(
    settings: Sequence[Setting],
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    machine: Machine,
) -> list[RunSpec]:
    """Return the runs of every contender under every setting with every seed. Runs with the same
    setting and seed are consecutive.

    Raises `ConfigError` for a contender that cannot run on the machine.
    """
    machine.check(contenders)
    return [
        RunSpec(setting, seed, contender, machine)
        for setting, (repeat, seed) in product(settings, enumerate(seeds))
        for contender in turns(contenders, repeat)
    ]


def turns(contenders: Sequence[Item], repeat: int) -> list[Item]:
    """Return the contenders in the order for a repeat. Each repeat starts with another contender,
    so that no contender is always the first.
    """
    first = repeat % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def do(spec: RunSpec) -> RunResult:
    """Do a run in this process."""
    return RunResult(spec, run(spec, arrivals(spec)).summary())


def arrivals(spec: RunSpec) -> Sequence[ProgramShape]:
    """Return the programs of a run with their arrival times."""
    arranged = spec.setting.arrivals(spec.machine, spec.seed)
    hints = spec.contender.hints
    return arranged if hints is None else with_hints(arranged, hints, spec.seed)


def run(spec: RunSpec, programs: Sequence[ProgramShape]) -> RunOutcome:
    """Run the programs, and return the outcome of each program."""
    return spec.machine.run(spec.contender, programs)
