"""``benchmarks figure``: reproduces the paper's toy examples and its comparison to the optimum.

The paper (Agentix, arXiv 2502.13965) draws toy examples, but does not state their conventions. Our
conventions are the same for all examples: time is in decode steps; a program's waiting is its
latency minus the work on its own critical path; the best B calls run in each step (Algorithm 1,
lines 32-39); preempted calls, the worst first, go to the tail of their level; calls that end are
replaced by their successors before other calls are demoted; a policy that learns from ended
programs learns from each program at its end; a call keeps the full quantum of the level that it
enters; levels end at the running sum of the quanta; no promotion.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from click.core import ParameterSource

from agentrt.cli.plots import check_plot
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    file,
    jobs_option,
    json_flag,
    max_num_seqs_option,
    policy_option,
    programs_option,
    seeds_option,
    text_option,
)
from agentrt.lab.commands.progress import compared
from agentrt.lab.reports.compare import Series, about_seeds, as_dicts, conditions
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import contenders
from agentrt.lab.runs.grid import RunSpec, Setting, grid
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.policies import policy_class
from benchmarks.options import load_option
from benchmarks.plots import draw_curves
from benchmarks.simulate.options import read_loads
from benchmarks.steps import SlotMachine
from benchmarks.tables import median_ratio
from benchmarks.workloads.source import WorkloadSource
from tests.lab.toys import ToyCall, ToyEngine, ToyProgram

_EPILOG = """\b
Examples:
  python -m benchmarks figure 2                              FCFS, MLFQ and PLAS as drawn
  python -m benchmarks figure 2 --policy plas --json         one JSON object: a waiting of 12 steps
  python -m benchmarks figure 19                             MLFQ and ATLAS with parallel calls
  python -m benchmarks figure 20 --programs 1000             all policies against clairvoyant SRPT
"""

_OF_20 = ("workload", "load", "programs", "max_num_seqs", "seeds", "jobs", "plot")
OPTIMUM = "srpt"
_POLICIES = ("fcfs", "round-robin", "mlfq", "plas", "atlas", "adaptive", OPTIMUM)
_LOADS = ("0.7", "0.8", "0.9", "1.0", "1.1")


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.argument("number", metavar="2|19|20")
@policy_option(
    f"Policies to compare. Figure 20 adds {OPTIMUM}.  [default: for figures 2 and 19, those of the "
    f"paper; for figure 20, {','.join(_POLICIES)}]"
)
@json_flag("Print one JSON object for each policy; for figure 20, one object in all.")
@file("--plot", about="Figure 20: file for a drawing (.png, .svg or .pdf).")
@text_option("--workload", "NAME", "Figure 20: workload.", default="mixed")
@load_option(f"Figure 20: loads.  [default: {','.join(_LOADS)}]")
@programs_option("Figure 20: number of programs.", default=200)
@max_num_seqs_option(default=16, suffix="  For figure 20.")
@seeds_option(default=1, suffix="  For figure 20.", first="0")
@jobs_option
@click.pass_context
def figure(ctx: click.Context, /, number: str, **options: Any) -> None:
    """Reproduce a figure of the paper (Agentix, arXiv 2502.13965) in the simulator.

    2: how long four programs wait under each policy. 19: parallel short calls against a long call.
    20: how far policies are from a policy that knows the future.

    The paper leaves conventions open; our choices are printed with the numbers.
    """
    check_plot(options["plot"])
    if number != "20":
        for name in _OF_20:
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                flag = name.replace("_", "-")
                raise ConfigError(f"--{flag} is for figure 20 only; leave it out")
    match number:
        case "2" | "19":
            _toy(int(number), options)
        case "20":
            _optimum(options)
        case _:
            raise ConfigError(f"figure {number!r} is not simulated; choose 2, 19 or 20")


def _toy(number: int, options: Mapping[str, Any]) -> None:
    toy = TOYS[number]
    runs = [toy.run(policy) for policy in options["policy"] or toy.paper]
    if options["as_json"]:
        for run in runs:
            click.echo(json.dumps(run.to_dict()))
    else:
        click.echo(_toy_text(runs))


def _toy_text(runs: Sequence[ToyRun]) -> str:
    toy = runs[0].toy
    rows = []
    for run in runs:
        ends = " ".join(f"{name}@{end}" for name, end in sorted(run.ends.items()))
        quanta = _quanta(toy.convention(run.policy)["quanta"])
        rows.append([run.policy, run.waiting, toy.paper.get(run.policy, "-"), ends, quanta])
    table = markdown(["policy", f"{' + '.join(toy.counted)} wait", "paper", "ends", "quanta"], rows)
    common = toy.convention(runs[0].policy)
    for name in ("quanta", "counted", "note"):
        del common[name]
    lines = "\n".join(f"{name}: {value}" for name, value in common.items())
    return f"{table}\n\n{lines}\nNote: {toy.note}"


def _quanta(quanta: Sequence[float | None] | None) -> str:
    if quanta is None:
        return "-"
    return ", ".join("∞" if quantum is None else f"{quantum:g}" for quantum in quanta)


# -- figure 20 -------------------------------------------------------------------------


def _optimum(options: Mapping[str, Any]) -> None:
    """Compare the mean latency of the policies, by load, with the mean latency of a policy that
    knows the future.
    """
    # The optimum is the last policy of the drawing and of the table.
    names = [*(name for name in options["policy"] or _POLICIES if name != OPTIMUM), OPTIMUM]
    source = WorkloadSource(options["workload"])
    loads = read_loads(options["load"] or _LOADS)
    settings = [Setting(source, load, options["programs"]) for load in loads]
    seeds = range(options["seeds"])
    specs = grid(settings, contenders(names), seeds, SlotMachine(options["max_num_seqs"]))
    with compared(specs, options["jobs"], OPTIMUM) as cells:
        if cells:
            _tell(cells, specs, list(seeds), options)


def _tell(
    cells: Sequence[Series], specs: Sequence[RunSpec], seeds: list[int], options: Mapping[str, Any]
) -> None:
    spec = specs[0]
    if options["plot"]:
        draw_curves(cells, options["plot"], ("mean_s",))
    common = conditions(specs, seeds, OPTIMUM)
    if options["as_json"]:
        values = {"figure": 20, "settings": common, "cells": as_dicts(cells)}
        click.echo(json.dumps(values))
        return
    click.echo(
        f"{options['programs']} programs ({spec.setting.source.name}). {about_seeds(seeds)}. "
        f"{spec.machine.in_words()}\n"
        "Mean latency in seconds, and in parentheses its ratio to the mean latency under "
        f"{OPTIMUM}, which knows the future.\n"
    )
    click.echo(_by_rate(cells, spec))


def _by_rate(cells: Sequence[Series], spec: RunSpec) -> str:
    """Return a table with a row for each load and a column for each policy."""
    policies = list(dict.fromkeys(cell.name for cell in cells))
    rows = []
    for setting in dict.fromkeys(cell.setting for cell in cells):
        here = {cell.name: cell for cell in cells if cell.setting == setting}
        programs = setting.source.programs(setting.programs, spec.seed)
        rate = setting.pressure.rate_per_s(spec.machine.capacity_per_s(programs))
        means = [_mean(here.get(policy)) for policy in policies]
        rows.append([setting.label, f"{rate:.3f}", *means])
    return markdown(["load", "programs/s", *policies], rows)


def _mean(cell: Series | None) -> str:
    return f"{cell.median('mean_s'):.1f} ({median_ratio(cell, 'mean_s'):.2f})" if cell else "-"


# -- the toys: programs, conventions, and the numbers that come out --------------------

_COMMON = {
    "time": "decode steps, all alike",
    "waiting": "latency minus the work on the program's own critical path",
    "preemption": "at any step; the victim goes to the tail of its level",
    "order": "arrivals and successors before demotions; no promotion",
    "levels": "they end at the running sum of the quanta; a call keeps a full quantum",
}


@dataclass(frozen=True, slots=True)
class Toy:
    """A toy example of the paper: its programs, the number of slots, and the programs whose waiting
    is counted.

    ``quanta`` (in steps) are by policy, because the paper states none; all other policies use
    ``other_quanta``. ``paper`` has the waiting times that the paper states, by policy.
    """

    figure: int
    programs: tuple[ToyProgram, ...]
    batch: int
    counted: tuple[str, ...]
    other_quanta: tuple[float, ...]
    quanta: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    paper: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    def config(self, policy: str) -> SchedulerConfig:
        """Return the scheduler's settings for this figure under ``policy``."""
        return SchedulerConfig(
            policy=policy,
            quanta=self.quanta.get(policy, self.other_quanta),
            beta=math.inf,
            lane=0.0,
            min_running_steps=0,
            min_remaining_tokens=0,
        )

    def convention(self, policy: str) -> dict[str, Any]:
        """Return the conventions that the paper leaves open, as JSON values."""
        config = self.config(policy)
        # Quanta do not matter to a policy that serves in the order of arrival.
        quanta = [*config.quanta, None] if policy_class(policy).levelled else None
        chosen = {"batch": self.batch, "counted": list(self.counted), "quanta": quanta}
        return {**chosen, **_COMMON, "note": self.note}

    def run(self, policy: str) -> ToyRun:
        ran = ToyEngine(self.config(policy), self.batch).run(self.programs)
        counted = [program for program in self.programs if program.name in self.counted]
        return ToyRun(self, policy, ran.waiting(counted), ran.ends)


@dataclass(frozen=True, slots=True)
class ToyRun:
    """The result of a toy example under a policy.

    ``waiting`` is the waiting time of the counted programs, in steps; ``ends`` has the step at
    which each program ends.
    """

    toy: Toy
    policy: str
    waiting: int
    ends: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        convention = self.toy.convention(self.policy)
        return {"policy": self.policy, "waiting": self.waiting, "convention": convention}


FIGURE_2 = Toy(
    figure=2,
    programs=(
        ToyProgram.chain("A", (4, 3, 1, 1)),
        ToyProgram.chain("B", (3, 3, 4)),
        ToyProgram.chain("C", (1, 2)),
        ToyProgram.chain("D", (4,)),
    ),
    batch=2,
    counted=("A", "B", "C", "D"),
    other_quanta=(2, 2, 2),
    # With these quanta, A and B lose the engine to C and D as drawn, and D waits for the later
    # calls of A and B.
    quanta={"mlfq": (1, 2)},
    paper={"fcfs": 18, "mlfq": 18, "plas": 12},
    note="We tried all lists of 1 to 4 quanta of up to 5 steps; no list gives both 18 for mlfq and "
    "12 for plas. The quanta 1, 2 give 18 for mlfq and 14 for plas.",
)
"""Four programs whose calls follow each other, and two slots. The figure shows how FCFS and MLFQ
treat short programs.
"""

FIGURE_19 = Toy(
    figure=19,
    # Under MLFQ each of A's later calls interrupts B; under ATLAS they rank behind.
    programs=(
        ToyProgram("A", (ToyCall(1), ToyCall(1), ToyCall(1, (0,)), ToyCall(2, (2,)))),
        ToyProgram.chain("B", (3,)),
    ),
    batch=1,
    counted=("B",),
    other_quanta=(2,),
    paper={"mlfq": 5, "atlas": 3},
    note="The paper does not give the lengths of the calls; these lengths reproduce its waiting "
    "times. B's later calls are left out, because only the wait of B's first call is counted.",
)
"""Parallel short calls of A, and the calls that follow them, against one long call of B, on one
slot.
"""

TOYS = {toy.figure: toy for toy in (FIGURE_2, FIGURE_19)}
"""The toy examples, by the numbers of their figures. The paper states waiting times for each."""
