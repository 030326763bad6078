"""``benchmarks room``: the defaults and stock vLLM where the KV cache has room for everything.

The workloads are those of ``benchmarks memory``, in virtual time. Below a load of 1 the engine
keeps up with the programs, and nothing is to be gained; above it programs queue.
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
from agentrt.lab.commands.options import count_option, json_flag, many, seed_option, silence_vllm
from agentrt.lab.commands.progress import do_all
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Outcome
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK, contender
from benchmarks import first_runs
from benchmarks.memory.cells import ALL_WORKS, RECORDED, Cell, Memory, with_room_for_all

WORKS = tuple(name for name in ALL_WORKS if name != RECORDED)
LOADS = ("0.6", "2")
SLOTS = 16
EQUAL = 1.01
"""How many times stock's mean and P99 may be where nothing is to be gained."""
Ratios = first_runs.Ratios


@click.command
@many("--workload", metavar="NAME…", help=f"[default: all: {', '.join(WORKS)}]")
@many(
    "--load",
    metavar="X…",
    help=f"Arrivals, in shares of what the engine can do.  [default: {','.join(LOADS)}]",
)
@many("--policy", metavar="NAME…", help=f"Policies beside {STOCK}.  [default: {DEFAULT}]")
@count_option("--programs", about="Of each workload.")
@count_option("--seeds", about="Number of seeds.", default=5)
@seed_option
@count_option("--jobs", about="Processes.  [default: one per core]")
@json_flag("Print all ratios as one JSON line.")
def room(**options: Any) -> None:
    """Mean and P99 of completion times over stock vLLM's, with room for everything in the cache.

    A figure is the median over the seeds, with the least and the greatest; less is better. Below a
    load of 1 the mean and the P99 should be at most 1.01, and from 1 on at most 1.00.
    """
    trials = _trials(options)
    silence_vllm()
    done, stop = do_all(trials, options["jobs"], run)
    results = by_cell(done)
    if results:
        click.echo(table(results))
        if options["as_json"]:
            click.echo(json.dumps(as_json(results)))
    if stop is not None:
        raise stop


@dataclass(frozen=True, slots=True)
class Trial:
    """A workload at a load with a seed, and the policies that serve it."""

    workload: str
    load: float
    seed: int
    programs: int | None
    policies: tuple[str, ...]


Measured = tuple[Trial, Mapping[str, Ratios]]
"""A trial's ratios to stock by policy."""


def _trials(options: dict[str, Any]) -> list[Trial]:
    for name in options["workload"]:
        if name not in WORKS:
            raise ConfigError(f"unknown workload {name!r}; known: {', '.join(WORKS)}")
    loads = [_load(text) for text in options["load"] or LOADS]
    policies = first_runs.check_policies(options["policy"])
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    works = options["workload"] or WORKS
    return [
        Trial(work, load, seed, options["programs"], policies)
        for work, load, seed in product(works, loads, seeds)  # an early end leaves whole workloads
    ]


def _load(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(f"--load {text!r}: give a positive number such as 0.6")
    return value


def run(trial: Trial) -> Measured:
    """Serve the programs of a trial by stock and by each policy, in this process."""
    memory = Memory(slots=SLOTS, count=trial.programs, load=trial.load)
    work = ALL_WORKS[trial.workload]
    cell = Cell(trial.workload, 1.0, work.tool_s)
    programs = memory.programs(cell, trial.seed)
    longest = memory.longest(cell)
    small = VirtualOptions(SLOTS, longest // BLOCK_SIZE + 2, max_model_len=longest)
    options = with_room_for_all(programs, small)

    def serve(name: str) -> Sequence[Outcome]:
        return contender(name).run(programs, options, work.step_time).outcomes

    base = serve(STOCK)
    return trial, {name: first_runs.ratios(base, serve(name)) for name in trial.policies}


Key = tuple[float, str, str]
"""Load, workload, policy."""
Results = Mapping[Key, Sequence[Ratios]]


def by_cell(done: Sequence[Measured]) -> Results:
    """The ratios of each seed by load, workload and policy, in this order."""
    results: dict[Key, list[Ratios]] = {}
    for trial, measured in sorted(
        done, key=lambda one: (one[0].load, WORKS.index(one[0].workload), one[0].seed)
    ):
        for policy, over in measured.items():
            results.setdefault((trial.load, trial.workload, policy), []).append(over)
    return results


def reached(load: float, seeds: Sequence[Ratios]) -> bool:
    """Whether the medians of the mean and of the P99 are what they should be at a load."""
    wanted = EQUAL if load < 1 else 1.0
    return all(first_runs.reached(seeds, figure, wanted) for figure in ("mean", "p99"))


def table(results: Results) -> str:
    """A row per load, workload and policy, and below it how many rows are as they should be."""
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
    """All ratios of each seed, for a program to read."""
    return {
        "cells": [
            {"load": load, "workload": work, "policy": policy, "by_seed": list(seeds)}
            for (load, work, policy), seeds in results.items()
        ]
    }
