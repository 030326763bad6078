"""Figure 20: how the policies' mean latency grows with the rate, beside one that knows all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentrt.lab.commands.simulate import tables
from agentrt.lab.commands.simulate.options import read_policies
from agentrt.lab.commands.simulate.progress import do_runs
from agentrt.lab.reports.cells import as_dicts
from agentrt.lab.reports.compare import Cell, cells
from agentrt.lab.reports.plots import draw_curves
from agentrt.lab.reports.tables import markdown
from agentrt.lab.runs import contenders
from agentrt.lab.runs.grid import RunSpec, grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.settings import Setting, Source
from agentrt.scheduler import SchedulerConfig

OPTIMUM = "srpt"
_POLICIES = ("fcfs", "round-robin", "mlfq", "plas", "atlas", "adaptive", OPTIMUM)
_LOADS = ("0.7", "0.8", "0.9", "1.0", "1.1")


def compare_to_optimum(options: dict[str, Any]) -> None:
    """Do the runs, and print mean latency by rate and policy."""
    policies = read_policies(options["policy"] or _POLICIES, OPTIMUM)
    # The optimum is the last line of the drawing and of the table.
    policies.append(policies.pop(0))
    source = Source(options["workload"])
    pressures = [Pressure.parse(text) for text in options["load"] or _LOADS]
    settings = [Setting(source, pressure, options["programs"]) for pressure in pressures]
    seeds = range(options["seeds"])
    specs = grid(
        settings, contenders.policies(policies, SchedulerConfig()), seeds, Machine(options["batch"])
    )
    results, stop = do_runs(specs, options["jobs"])
    found = cells(results, settings, policies, OPTIMUM)
    if found:
        _tell(found, specs, list(seeds), options)
    if stop:
        raise stop


def _tell(
    found: Sequence[Cell], specs: Sequence[RunSpec], seeds: list[int], options: dict[str, Any]
) -> None:
    spec = specs[0]
    if options["plot"]:
        draw_curves(found, options["plot"], ("mean_s",))
    common = tables.conditions(specs, seeds, OPTIMUM)
    if options["as_json"]:
        told = {"figure": 20, "settings": common, "cells": as_dicts(found)}
        click.echo(json.dumps(told))
        return
    click.echo(
        f"{options['programs']} programs ({spec.setting.source.name}). {tables.in_words(common)}\n"
        f"Mean latency in seconds, and its ratio to {OPTIMUM}'s, which knows the future.\n"
    )
    click.echo(_by_rate(found, spec))


def _by_rate(found: Sequence[Cell], spec: RunSpec) -> str:
    """A row per load, a column per policy."""
    policies = list(dict.fromkeys(cell.policy for cell in found))
    rows = []
    for setting in dict.fromkeys(cell.setting for cell in found):
        here = {cell.policy: cell for cell in found if cell.setting == setting}
        programs = setting.source.programs(setting.programs, spec.seed)
        rate = setting.pressure.rate_per_s(spec.machine.capacity_per_s(programs))
        means = [_mean(here.get(policy)) for policy in policies]
        rows.append([setting.label, f"{rate:.3f}", *means])
    return markdown(["load", "programs/s", *policies], rows)


def _mean(cell: Cell | None) -> str:
    return f"{cell.median('mean_s'):.1f} ({cell.median_ratio('mean_s'):.2f})" if cell else "-"
