"""``agentrt simulate run`` and ``sweep``: policies under one setting, and over a grid of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    check_plot,
    count_option,
    counts,
    file,
    json_flag,
    many,
)
from agentrt.lab.commands.progress import compared
from agentrt.lab.commands.simulate.options import (
    ABOUT_WORKLOAD,
    engine_options,
    policy_option,
    read_grid,
    read_loads,
    read_sources,
    scale_options,
    seeds_option,
    workloads_option,
)
from agentrt.lab.reports.plots import draw_curves
from agentrt.lab.reports.policies import (
    about_engine,
    about_hints,
    about_seeds,
    as_values,
    conditions,
    ratios_table,
    sweep_table,
    values_table,
)
from agentrt.lab.runs.contenders import BASELINE
from agentrt.lab.runs.grid import RunSpec, Setting, Source
from agentrt.lab.workloads.arrivals import Pressure

_OF_RUN = """\b
Examples:
  agentrt simulate run --workload mixed --load 0.95
  agentrt simulate run --workload chat --load b0.8 --policy mlfq atlas srpt --repeat 5
  agentrt simulate run --workload programs.jsonl --json

\b
A load is the share of what the engine's slots can do: at 1 they are busy all the time.
Ratios are to fcfs with the same programs; with --repeat the median is shown,
with the least and the greatest. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_OF_SWEEP = """\b
Examples:
  agentrt simulate sweep --workload chat react lats --load 0.8 0.9 0.95 --programs 500
  agentrt simulate sweep --load 0.8 0.9 0.95 b0.8 1.3 --policy mlfq plas atlas srpt \\
      --seeds 5 --programs 4000 --plot curves.png
  agentrt simulate sweep --load b0.8 --policy plas adaptive adaptive+hints --hints 0.5
  agentrt simulate sweep --workload sessions.jsonl.gz --output-scale 0.2 --gap-scale 0.01
  agentrt simulate sweep --workload chat --offline --programs 1000 2000 4000
  agentrt simulate sweep --workload mixed --json | tail -1 | jq '.cells[].measures.mean_s.ratio'

\b
Loads are shares of the engine's capacity: 0.9 are Poisson arrivals, b0.8 is a mean load of
0.8 in bursts between 1.9 and 0.1 (1000 programs, or all, for a burst and its lull), 1.3 is
overload for the length of the run. A trace's programs come in an order of each seed's own,
and again once all have come; its gaps are kept. NAME+hints is the policy NAME, told a guess
of each program's size. Ratios are medians over the seeds, with the least and the greatest.
Ctrl-C keeps what is done.
Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_LOADS = ("0.8", "0.9", "0.95", "b0.8", "1.3")


@click.command(cls=ManyCommand, epilog=_OF_RUN)
@click.option("--workload", metavar="NAME|[FORMAT:]FILE", help=ABOUT_WORKLOAD)
@scale_options
@policy_option
@click.option(
    "--load", metavar="X", help="Share of capacity, in bursts as b0.8.  [default: 0.9; as recorded]"
)
@count_option("--programs", about="How many.  [default: 1000; all of a trace]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="The first seed.")
@count_option("--repeat", default=1, about="With so many seeds.")
@engine_options
@json_flag("Print one JSON object instead of tables.")
def run(**options: Any) -> None:
    """Simulate policies under one setting, on the same programs at the same times.

    For each: latency of programs (mean, P50, P95, P99), slowdown, token latency,
    throughput, makespan, where the time went, preemptions.
    """
    [source] = read_sources([options["workload"] or "mixed"], options)
    setting = Setting(source, _pressure(source, options), options["programs"])
    seeds = list(range(options["seed"], options["seed"] + options["repeat"]))
    specs = read_grid(options, [setting], seeds)
    with compared(specs, options["jobs"], BASELINE) as found:
        if not found:
            return
        common = conditions(specs, seeds, BASELINE)
        if options["as_json"]:
            click.echo(json.dumps(as_values(found, specs, common)))
            return
        what = f"{setting.count} programs ({setting.source.name}), arrivals: {setting.pressure}."
        parts = [f"{what} {_about(specs, seeds)}", values_table(found)]
        parts += [ratios_table(found, BASELINE)] if len(found) > 1 else []
        click.echo("\n\n".join(parts))


def _about(specs: Sequence[RunSpec], seeds: Sequence[int]) -> str:
    return f"{about_seeds(seeds)}.\n{about_engine(specs[0].machine)}{about_hints(specs)}"


def _pressure(source: Source, options: dict[str, Any]) -> Pressure:
    if options["load"] is not None:
        return Pressure.parse(options["load"])
    return Pressure("load", 0.9) if source.path is None else Pressure("recorded")


@click.command(cls=ManyCommand, epilog=_OF_SWEEP)
@workloads_option
@scale_options
@many("--load", metavar="X…", help=f"Loads, bursts as b0.8.  [default: {','.join(_LOADS)}]")
@policy_option
@click.option("--offline", is_flag=True, help="All programs at once: compare makespans.")
@many(
    "--programs",
    metavar="N…",
    help="How many; several with --offline.  [default: 1000; all of a trace]",
)
@seeds_option
@engine_options
@json_flag("End with all of it as one JSON line.")
@file("--plot", about="Draw latency against load.")
def sweep(**options: Any) -> None:
    """Simulate every policy under every load on every workload."""
    check_plot(options["plot"])
    seeds = list(range(options["seeds"]))
    specs = read_grid(options, _settings(options), seeds)
    with compared(specs, options["jobs"], BASELINE) as found:
        if not found:
            return
        common = conditions(specs, seeds, BASELINE)
        ran = sorted({cell.setting.count for cell in found})
        click.echo(f"{', '.join(map(str, ran))} programs. {_about(specs, seeds)}\n")
        click.echo(sweep_table(found, BASELINE))
        if options["as_json"]:
            click.echo(json.dumps(as_values(found, specs, common)))
        if options["plot"]:
            measures = ("makespan_s",) if options["offline"] else ("mean_s", "p99_s")
            draw_curves(found, options["plot"], measures)


def _settings(options: Mapping[str, Any]) -> list[Setting]:
    sources = read_sources(options["workload"], options)
    numbers: list[int | None] = [*counts("--programs", options["programs"])] or [None]
    if options["offline"]:
        if options["load"]:
            raise ConfigError("--offline has all programs arrive at once; leave --load out")
        return [Setting(s, Pressure("at-once"), n) for s in sources for n in numbers]
    if len(numbers) > 1:
        raise ConfigError("--programs: several numbers are for --offline; give one")
    loads = read_loads(options["load"] or _LOADS)
    return [Setting(source, load, numbers[0]) for source in sources for load in loads]
