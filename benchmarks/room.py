"""``benchmarks room``: the defaults and stock vLLM with a KV cache that has room for everything.

The workloads are those of ``benchmarks memory``, in virtual time. Below a load of 1, the engine
keeps up with the programs, and no policy can gain anything; above it, programs queue.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    jobs_option,
    json_flag,
    load_option,
    policy_option,
    programs_option,
    seed_option,
    seeds_option,
    silence_vllm,
    workload_option,
)
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK, contender
from benchmarks import first_runs
from benchmarks.cells import Cell, Load, cells_of, check_names, measured
from benchmarks.harness import Figures
from benchmarks.memory.cells import ALL_WORKS, RECORDED, Memory, Setup, with_room_for_all

WORKS = tuple(name for name in ALL_WORKS if name != RECORDED)
LOADS = ("0.6", "2")
SLOTS = 16
EQUAL = 1.01
"""The highest acceptable ratio of mean and P99 to stock's if no policy can gain anything."""
Ratios = first_runs.Ratios


@click.command(cls=ManyCommand)
@workload_option(f"Workloads to run.  [default: all: {', '.join(WORKS)}]")
@load_option(f"Arrivals, in shares of what the engine can do.  [default: {','.join(LOADS)}]")
@policy_option(f"Policies beside {STOCK}.  [default: {DEFAULT}]")
@programs_option("Number of programs of each workload.")
@seeds_option(default=5)
@seed_option
@jobs_option
@json_flag("Print all ratios as one JSON line.")
def room(**options: Any) -> None:
    """Compare mean and P99 of completion times with stock vLLM's, with room for everything.

    Each figure is the median ratio to stock over the seeds, with the least and the greatest; less
    is better. Mean and P99 should be at most 1.01 below a load of 1, and at most 1.00 from 1 on.
    """
    planned = _cells(options)
    silence_vllm()
    with measured(planned, figures, options["jobs"]) as runs:
        results = by_load(runs.over(STOCK, first_runs.ratios))
        if results:
            click.echo(table(results))
            if options["as_json"]:
                click.echo(json.dumps(as_json(results)))


@dataclass(frozen=True, slots=True)
class Roomy:
    """A workload at a load, on an engine with room for all of its programs."""

    name: str
    at: float
    count: int | None

    def load(self, seed: int) -> Load:
        """Make the programs and the engine."""
        memory = Memory(slots=SLOTS, count=self.count, load=self.at)
        work = ALL_WORKS[self.name]
        setup = Setup(self.name, 1.0, work.tool_s)
        programs = memory.programs(setup, seed)
        longest = memory.longest(setup)
        small = VirtualOptions(SLOTS, longest // BLOCK_SIZE + 2, max_model_len=longest)
        return Load(programs, with_room_for_all(programs, small), work.step_time)


def _cells(options: dict[str, Any]) -> list[Cell[Roomy, str]]:
    names = check_names("workload", options["workload"], WORKS)
    loads = [_load(text) for text in options["load"] or LOADS]
    policies = first_runs.check_policies(options["policy"])
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    # In this order, an early end leaves finished workloads.
    works = [Roomy(name, load, options["programs"]) for name, load in product(names, loads)]
    return cells_of(works, policies, seeds)


def _load(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"--load {text!r}: give a positive number such as 0.6")
    return value


def figures(load: Load, name: str) -> Figures:
    """Return the completion times of a run."""
    return first_runs.times(load.virtual(contender(name)).outcomes)


Key = tuple[float, str, str]
"""Load, workload, policy."""
Results = Mapping[Key, Sequence[Ratios]]


def by_load(over: Mapping[tuple[Roomy, str], Sequence[Ratios]]) -> Results:
    """Return the ratios of each seed by load, workload and policy, in this order."""
    runs = {(work.at, work.name, policy): seeds for (work, policy), seeds in over.items()}
    return dict(sorted(runs.items(), key=lambda item: (item[0][0], WORKS.index(item[0][1]))))


def reached(load: float, seeds: Sequence[Ratios]) -> bool:
    """Return whether the medians of the mean and of the P99 are acceptable at a load."""
    wanted = EQUAL if load < 1 else 1.0
    return all(first_runs.reached(seeds, figure, wanted) for figure in ("mean", "p99"))


def table(results: Results) -> str:
    """Return a table with a row for each load, workload and policy, and the number of acceptable
    rows.
    """
    rows = []
    for (load, work, policy), seeds in results.items():
        figures = [first_runs.spread(seeds, figure) for figure in ("mean", "p99")]
        verdict = "yes" if reached(load, seeds) else "no"
        wanted = f"{EQUAL if load < 1 else 1.0:.2f}"
        rows.append([f"{load:g}", work, policy, *figures, wanted, verdict])
    head = ["load", "workload", "policy", f"mean / {STOCK}", f"P99 / {STOCK}"]
    count = sum(row[-1] == "yes" for row in rows)
    return (
        markdown([*head, "both at most", "reached"], rows)
        + f"\n\n{count} of {len(rows)} rows are as they should be."
    )


def as_json(results: Results) -> dict[str, Any]:
    """Return all ratios of each seed as JSON values."""
    return {
        "cells": [
            {"load": load, "workload": work, "policy": policy, "by_seed": list(seeds)}
            for (load, work, policy), seeds in results.items()
        ]
    }
