"""``benchmarks simulate run`` and ``sweep``: policies under one setting, and under many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.cli.plots import check_plot
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    file,
    flag_option,
    json_flag,
    many,
    seeds_option,
    text_option,
)
from agentrt.lab.commands.progress import compared
from agentrt.lab.commands.simulate import (
    about,
    fleet_options,
    policies_option,
    read_grid,
    read_sources,
    run_options,
    scale_options,
    scheduler_options,
    simulate_run,
)
from agentrt.lab.reports.compare import as_values, conditions
from agentrt.lab.runs.contenders import BASELINE
from agentrt.lab.runs.grid import Setting
from agentrt.lab.workloads.arrivals import Pressure
from benchmarks.options import (
    counts,
    load_option,
)
from benchmarks.plots import draw_curves
from benchmarks.simulate.options import (
    ABOUT_WORKLOADS,
    DEFAULT_WORKLOADS,
    depth_options,
    read_depth,
    read_loads,
    workloads_option,
)
from benchmarks.tables import sweep_table
from benchmarks.workloads.generate import WORKLOADS
from benchmarks.workloads.source import WorkloadSource

_OF_RUN = """\b
Examples:
  python -m benchmarks simulate run --workload mixed --load 0.95 --policy mlfq,atlas,srpt
  python -m benchmarks simulate run --workload react --programs 100 --depth virtual

\b
'agentrt simulate run --help' explains loads and ratios.
Exit codes: 0 done; 1 a process of the simulation died; 2 bad usage; 130 Ctrl-C.
"""
_OF_SWEEP = """\b
Examples:
  python -m benchmarks simulate sweep --workload chat,react,lats --load 0.8,0.9,0.95 --programs 500
  python -m benchmarks simulate sweep --load 0.8,0.9,0.95,b0.8,1.3 --policy mlfq,plas,atlas,srpt \\
      --seeds 5 --programs 4000 --plot curves.png
  python -m benchmarks simulate sweep --load b0.8 --policy plas,adaptive,adaptive+hints --hints 0.5
  python -m benchmarks simulate sweep --workload sessions.jsonl.gz --output-scale 0.2
  python -m benchmarks simulate sweep --workload chat --offline --programs 1000,2000,4000

\b
Loads are shares of the engine's capacity: 0.9 is a load with Poisson arrivals; b0.8 is a mean load
of 0.8, which alternates between 1.9 (a burst) and 0.1; 1.3 is overload during the whole run. A
burst and the quiet phase after it have 1000 programs on average, or all if there are fewer.
The programs of a trace arrive in another order for each seed, and keep their gaps. If --programs is
larger than the trace, its programs arrive again. NAME+hints is the policy NAME with a hint of each
program's size. Ratios are medians over the seeds, with the least and the greatest.
Ctrl-C keeps finished runs.
Exit codes: 0 done; 1 a process of the simulation died; 2 bad usage; 130 Ctrl-C.
"""
_LOADS = ("0.8", "0.9", "0.95", "b0.8", "1.3")


@click.command(cls=ManyCommand, epilog=_OF_RUN)
@text_option("--workload", "NAME", ABOUT_WORKLOADS, default="mixed")
@run_options("for a trace, as recorded; else 0.9", "for a trace, all; else 1000")
@depth_options
def run(**options: Any) -> None:
    """Simulate policies under one setting, on the same programs at the same times."""
    if options["load"] is None and options["workload"] in WORKLOADS:
        options["load"] = "0.9"  # generated programs have no recorded times
    simulate_run(options, read_depth(options), WorkloadSource)


@click.command(cls=ManyCommand, epilog=_OF_SWEEP)
@workloads_option
@scale_options
@load_option(
    "Loads, as shares of the engine's capacity; b0.8 is a mean load of 0.8 in bursts.  "
    f"[default: {','.join(_LOADS)}]"
)
@policies_option
@flag_option("--offline", "Let all programs arrive at once, and compare makespans.")
@many(
    "--programs",
    metavar="N,…",
    help="Number of programs; several numbers with --offline.  [default: 1000; all of a trace]",
)
@seeds_option(default=3, first="0")
@fleet_options
@depth_options
@scheduler_options
@json_flag("Print all results as one JSON line at the end.")
@file("--plot", about="Draw latency by load.")
def sweep(**options: Any) -> None:
    """Simulate every policy under every load on every workload."""
    check_plot(options["plot"])
    seeds = list(range(options["seeds"]))
    machine = read_depth(options)
    specs = read_grid(options, _settings(options), seeds, machine)
    with compared(specs, options["jobs"], BASELINE) as series:
        if not series:
            return
        common = conditions(specs, seeds, BASELINE)
        ran = sorted({cell.setting.count for cell in series})
        click.echo(f"{', '.join(map(str, ran))} programs. {about(specs, seeds)}\n")
        click.echo(sweep_table(series, BASELINE))
        if options["as_json"]:
            click.echo(json.dumps(as_values(series, specs, common)))
        if options["plot"]:
            measures = ("makespan_s",) if options["offline"] else ("mean_s", "p99_s")
            draw_curves(series, options["plot"], measures)


def _settings(options: Mapping[str, Any]) -> list[Setting]:
    sources = read_sources(options["workload"] or DEFAULT_WORKLOADS, options, WorkloadSource)
    numbers: list[int | None] = [*counts("--programs", options["programs"])] or [None]
    if options["offline"]:
        if options["load"]:
            raise ConfigError("--offline has all programs arrive at once; leave --load out")
        return [Setting(s, Pressure("at-once"), n) for s in sources for n in numbers]
    if len(numbers) > 1:
        raise ConfigError(
            "--programs: several numbers are for --offline; give one number, or add --offline"
        )
    loads = read_loads(options["load"] or _LOADS)
    return [Setting(source, load, numbers[0]) for source in sources for load in loads]
