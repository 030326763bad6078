"""``agentrt simulate sweep``: a grid of workloads, loads and policies, on all cores."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import ManyCommand, file, many, policy_option
from agentrt.lab.commands.outputs import check_output, check_plot, write
from agentrt.lab.commands.simulate.options import (
    engine_options,
    read_counts,
    read_hints,
    read_loads,
    read_machine,
    read_policies,
    read_scheduler,
    read_sources,
    scale_options,
    seeds_option,
    warn_of_sleepers,
    workloads_option,
)
from agentrt.lab.commands.simulate.progress import compared
from agentrt.lab.reports.compare import Cell, as_csv, as_dicts
from agentrt.lab.reports.plots import draw_curves
from agentrt.lab.reports.policies import conditions, in_words, sweep_table
from agentrt.lab.runs import contenders
from agentrt.lab.runs.grid import RunSpec, grid
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.settings import Setting

_EPILOG = """\b
Examples:
  agentrt simulate sweep --workload chat react lats --load 0.8 0.9 0.95 --programs 500
  agentrt simulate sweep --load 0.8 0.9 0.95 b0.8 1.3 --policy mlfq plas atlas srpt \\
      --seeds 5 --programs 4000 --markdown table.md --plot curves.png
  agentrt simulate sweep --load b0.8 --policy plas adaptive adaptive+hints --hints 0.5
  agentrt simulate sweep --trace sessions.jsonl.gz --output-scale 0.2 --gap-scale 0.01
  agentrt simulate sweep --workload chat --offline --programs 1000 2000 4000
  agentrt simulate sweep --workload mixed --json - | jq '.cells[].measures.mean_s.ratio'

\b
Loads are shares of the engine's capacity: 0.9 are Poisson arrivals, b0.8 is a mean load of
0.8 in bursts between 1.9 and 0.1 (1000 programs, or all, for a burst and its lull), 1.3 is
overload for the length of the run. A trace's programs come in an order of each seed's own,
and again once all have come; its gaps are kept. NAME+hints is the policy NAME, told a guess
of each program's size. Ratios are medians over the seeds, with the least and the greatest.
Ctrl-C keeps what is done.
Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_POLICIES = ("mlfq", "plas", "atlas", "adaptive")
_LOADS = ("0.8", "0.9", "0.95", "b0.8", "1.3")
_OUTPUTS = {"json_path": "--json", "csv_path": "--csv", "md_path": "--markdown"}


@click.command(cls=ManyCommand, epilog=_EPILOG)
@workloads_option
@scale_options
@many("--load", metavar="X…", help=f"Loads, bursts as b0.8.  [default: {','.join(_LOADS)}]")
@policy_option(",".join(_POLICIES))
@click.option("--offline", is_flag=True, help="All programs at once: compare makespans.")
@many(
    "--programs",
    metavar="N…",
    help="How many; several with --offline.  [default: 1000; all of a trace]",
)
@seeds_option
@engine_options
@file("--json", "json_path", metavar="FILE|-")
@file("--csv", "csv_path", metavar="FILE|-")
@file("--markdown", "md_path", metavar="FILE|-")
@file("--plot", about="Draw latency against load.")
def sweep(**options: Any) -> None:
    """Simulate every policy under every load on every workload.

    Tables go to stdout, unless a - says what else goes there.
    """
    _check_outputs(options)
    baseline = options["baseline"]
    names = read_policies(options["policy"] or _POLICIES, baseline)
    settings = _settings(options)
    machine = read_machine(options)
    scheduler = read_scheduler(options)
    everyone = contenders.policies(names, scheduler, read_hints(options["hints"], names))
    seeds = list(range(options["seeds"]))
    specs = grid(settings, everyone, seeds, machine)
    warn_of_sleepers(settings, machine)
    with compared(specs, options["jobs"], names, baseline) as found:
        if found:
            _write(found, specs, seeds, options)


def _check_outputs(options: Mapping[str, Any]) -> None:
    for name, option in _OUTPUTS.items():
        check_output(option, options[name])
    if sum(str(options[name]) == "-" for name in _OUTPUTS) > 1:
        raise ConfigError("only one of --json, --csv and --markdown can go to stdout (-)")
    check_plot(options["plot"])


def _settings(options: Mapping[str, Any]) -> list[Setting]:
    sources = read_sources(options)
    counts: list[int | None] = [*read_counts("--programs", options["programs"])] or [None]
    if options["offline"]:
        if options["load"]:
            raise ConfigError("--offline has all programs arrive at once; leave --load out")
        return [Setting(s, Pressure("at-once"), n) for s in sources for n in counts]
    if len(counts) > 1:
        raise ConfigError("--programs: several numbers are for --offline; give one")
    loads = read_loads(options["load"] or _LOADS)
    return [Setting(source, load, counts[0]) for source in sources for load in loads]


def _write(
    found: Sequence[Cell],
    specs: Sequence[RunSpec],
    seeds: list[int],
    options: Mapping[str, Any],
) -> None:
    common = conditions(specs, seeds, options["baseline"])
    counts = sorted({cell.setting.count for cell in found})
    head = f"{', '.join(map(str, counts))} programs. {in_words(common)}"
    text = f"{head}\n\n{sweep_table(found, options['baseline'])}"
    told = {
        "settings": common,
        "complete": sum(len(cell.seeds) for cell in found) == len(specs),
        "cells": as_dicts(found),
    }
    write(options["json_path"], f"{json.dumps(told)}\n")
    write(options["csv_path"], as_csv(found))
    write(options["md_path"], f"{text}\n")
    if options["plot"]:
        offline = found[0].setting.pressure.kind == "at-once"
        draw_curves(found, options["plot"], ("makespan_s",) if offline else ("mean_s", "p99_s"))
    if not any(str(options[name]) == "-" for name in _OUTPUTS):
        click.echo(text)
