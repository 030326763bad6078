"""``agentrt simulate run``: policies under one setting, on the programs of a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    count_option,
    json_flag,
)
from agentrt.lab.commands.progress import compared
from agentrt.lab.commands.simulate.options import (
    ABOUT_TRACE,
    engine_options,
    policy_option,
    read_grid,
    read_sources,
    scale_options,
)
from agentrt.lab.reports.policies import (
    about_engine,
    about_hints,
    about_seeds,
    as_values,
    conditions,
    ratios_table,
    values_table,
)
from agentrt.lab.runs.contenders import BASELINE
from agentrt.lab.runs.grid import GENERATORS, RunSpec, Setting, Source
from agentrt.lab.workloads.arrivals import Pressure

_OF_RUN = """\b
Examples:
  agentrt simulate run --workload programs.jsonl --load 0.95
  agentrt simulate run --workload mooncake:trace.jsonl --policy mlfq atlas srpt --repeat 5
  agentrt simulate run --workload programs.jsonl --depth virtual --json

\b
A load is the share of what the engine's slots can do: at 1 they are busy all the time.
Ratios are to fcfs with the same programs; with --repeat the median is shown,
with the least and the greatest. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_OF_RUN)
@click.option("--workload", metavar="[FORMAT:]FILE", help=ABOUT_TRACE)
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
    [source] = read_sources([options["workload"] or _usual_workload()], options)
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
        parts = [f"{what} {about(specs, seeds)}", values_table(found)]
        parts += [ratios_table(found, BASELINE)] if len(found) > 1 else []
        click.echo("\n\n".join(parts))


def _usual_workload() -> str:
    if _USUAL not in GENERATORS:
        raise ConfigError("--workload: give recorded programs as FILE or FORMAT:FILE")
    return _USUAL


_USUAL = "mixed"
"""The workload of a checkout that nobody names."""


def about(specs: Sequence[RunSpec], seeds: Sequence[int]) -> str:
    """Say in words what all runs have in common."""
    return f"{about_seeds(seeds)}.\n{about_engine(specs[0].machine)}{about_hints(specs)}"


def _pressure(source: Source, options: dict[str, Any]) -> Pressure:
    if options["load"] is not None:
        return Pressure.parse(options["load"])
    return Pressure("load", 0.9) if source.path is None else Pressure("recorded")
