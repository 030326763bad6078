"""Grids of simulated runs: every setting with every seed, by every contender.

A run is described by plain values (`RunSpec`), so that it can be done in another process
(`agentrt.lab.runs.workers`) and said in a report. All of one seed see the same programs at the
same times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from agentrt.errors import InvariantError
from agentrt.lab.backends.steps import Steps
from agentrt.lab.driver import drive
from agentrt.lab.outcome import Ran, Summary
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Setting
from agentrt.lab.workloads.shape import ProgramShape, with_hints

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
    """Every contender under every setting with every seed; those of one seed side by side."""
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
    machine, one = spec.machine, spec.contender
    count, router = machine.replicas, machine.router
    if machine.depth == "virtual":
        fleet = {"replicas": count, "router": router if count > 1 else None}
        return one.run(programs, machine.virtual_options(), machine.step_time(), **fleet)
    if one.config is None:
        raise InvariantError("vLLM's own scheduler runs in depth 'virtual' only")
    engines = Steps(one.config, machine.batch, machine.step_s, replicas=count, router=router)
    return drive(engines, programs)
