"""``agentrt simulate run``: simulates policies under one setting on the programs of a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentrt.cli.lazy import REMOVED_IN
from agentrt.cli.options import together
from agentrt.cli.streams import say
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    Option,
    json_flag,
    programs_option,
    seed_option,
    seeds_option,
    text_option,
)
from agentrt.lab.commands.progress import compared
from agentrt.lab.commands.simulate.options import (
    ABOUT_TRACE,
    fleet_options,
    machine_options,
    policies_option,
    read_grid,
    read_machine,
    read_sources,
    scale_options,
    scheduler_options,
)
from agentrt.lab.reports.policies import (
    NOTHING_WAITED,
    about_engine,
    about_hints,
    about_seeds,
    as_values,
    conditions,
    ratios_table,
    values_table,
)
from agentrt.lab.runs.contenders import BASELINE
from agentrt.lab.runs.grid import RunSpec, Setting, Source
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import Pressure

_EPILOG = """\b
Examples:
  agentrt simulate run --workload programs.jsonl --load 0.95
  agentrt simulate run --workload mooncake:trace.jsonl --policy mlfq,atlas,srpt --seeds 5
  agentrt simulate run --workload programs.jsonl --replicas 4 --router cost --json

\b
A load is a share of the engine's capacity: at 1 its slots are busy all the time. Ratios are to
fcfs with the same programs. With several --seeds, the median is shown with the least and the
greatest value. Exit codes: 0 done; 1 a process of the simulation died; 2 bad usage; 130 Ctrl-C.
"""
_NO_STEPS = (
    "--depth steps: the step simulator is in a checkout of agentrt now, as "
    "'python -m benchmarks simulate run --depth steps'; leave the option out for virtual time"
)


def _one_depth(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Print that virtual time is the only depth now. Raises `ConfigError` for ``steps``."""
    if value == "steps":
        raise ConfigError(_NO_STEPS)
    if value is not None:
        say(
            f"--depth {value} is the only depth now; the option works until version {REMOVED_IN}, "
            "so leave it out"
        )


run_options: Option = together(
    scale_options,
    policies_option,
    text_option(
        "--load",
        "X",
        "Arrival rate as a share of capacity; b0.8 is a mean of 0.8 in bursts.  [default: for a "
        "trace, as recorded; else 0.9]",
    ),
    programs_option("Number of programs.  [default: for a trace, all; else 1000]"),
    seed_option,
    seeds_option(default=1),
    fleet_options,
    scheduler_options,
    json_flag("Print one JSON object instead of tables."),
)


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--workload", metavar="[FORMAT:]FILE", help=ABOUT_TRACE)
@run_options
@machine_options
@click.option(
    "--depth",
    type=click.Choice(("steps", "virtual")),
    hidden=True,
    expose_value=False,
    callback=_one_depth,
)
def run(**options: Any) -> None:
    """Simulate policies under one setting, on the same programs at the same times.

    Prints for each policy the latency of programs (mean, P50, P95, P99), slowdown, token latency,
    throughput, makespan, shares of the time, and preemptions. vLLM must be installed, because its
    own scheduler runs; only the model is left out.
    """
    if options["workload"] is None:
        raise ConfigError("--workload is missing; give recorded programs as FILE or FORMAT:FILE")
    simulate_run(options, read_machine(options))


def simulate_run(options: dict[str, Any], machine: Machine) -> None:
    """Simulate the policies that `run_options` name on a machine, and print a report."""
    [source] = read_sources([options["workload"]], options)
    setting = Setting(source, _pressure(source, options), options["programs"])
    seeds = list(range(options["seed"], options["seed"] + options["seeds"]))
    specs = read_grid(options, [setting], seeds, machine)
    with compared(specs, options["jobs"], BASELINE) as series:
        if not series:
            return
        common = conditions(specs, seeds, BASELINE)
        if options["as_json"]:
            click.echo(json.dumps(as_values(series, specs, common)))
            return
        head = f"{setting.count} programs ({setting.source.name}), arrivals: {setting.pressure}."
        parts = [f"{head} {about(specs, seeds)}", values_table(series)]
        parts += [ratios_table(series, BASELINE)] if len(series) > 1 else []
        if all(share == 0 for cell in series for share in cell.values("waiting_share")):
            parts.append(NOTHING_WAITED)
        click.echo("\n\n".join(parts))


def about(specs: Sequence[RunSpec], seeds: Sequence[int]) -> str:
    """Return words that describe the settings that all runs have in common."""
    return f"{about_seeds(seeds)}.\n{about_engine(specs[0].machine)}{about_hints(specs)}"


def _pressure(source: Source, options: dict[str, Any]) -> Pressure:
    if options["load"] is not None:
        return Pressure.parse(options["load"])
    return Pressure("load", 0.9) if source.path is None else Pressure("recorded")
