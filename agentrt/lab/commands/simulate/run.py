"""``agentrt simulate run``: several policies under one setting."""

from __future__ import annotations

import json
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import ManyCommand, count_option, file, json_flag, policy_option
from agentrt.lab.commands.simulate.options import (
    POLICIES,
    engine_options,
    read_grid,
    read_source,
    read_traces,
    scale_options,
)
from agentrt.lab.commands.simulate.progress import compared
from agentrt.lab.reports.policies import as_values, conditions, in_words, ratios_table, values_table
from agentrt.lab.runs.contenders import BASELINE
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.settings import Setting, Source

_EPILOG = """\b
Examples:
  agentrt simulate run --workload mixed --load 0.95
  agentrt simulate run --workload chat --load b0.8 --policy mlfq atlas srpt --repeat 5
  agentrt simulate run --trace programs.jsonl --json

\b
A load is the share of what the engine's slots can do: at 1 they are busy all the time.
Ratios are to fcfs with the same programs; with --repeat the median is shown,
with the least and the greatest. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--workload", metavar="NAME", help="chat, react, lats, mixed (default) or graphs8.")
@file("--trace", about="Programs from a recorded trace; by default they arrive as recorded.")
@scale_options
@policy_option(",".join(POLICIES))
@click.option("--load", metavar="X", help="Share of capacity, in bursts as b0.8.  [default: 0.9]")
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
    setting = Setting(_source(options), _pressure(options), options["programs"])
    seeds = list(range(options["seed"], options["seed"] + options["repeat"]))
    specs, names = read_grid(options, [setting], seeds, POLICIES)
    with compared(specs, options["jobs"], names, BASELINE) as found:
        if not found:
            return
        common = conditions(specs, seeds, BASELINE)
        if options["as_json"]:
            click.echo(json.dumps(as_values(found, specs, common)))
            return
        what = f"{setting.count} programs ({setting.source.name}), arrivals: {setting.pressure}."
        parts = [f"{what} {in_words(common)}", values_table(found)]
        parts += [ratios_table(found, BASELINE)] if len(found) > 1 else []
        click.echo("\n\n".join(parts))


def _source(options: dict[str, Any]) -> Source:
    """Where the programs come from; a trace is read at once, and refused if it cannot be."""
    if options["trace"] is None:
        return read_source(options["workload"] or "mixed", options)
    if options["workload"] is not None:
        raise ConfigError("--workload and --trace: give one of them")
    return read_traces([options["trace"]], options)[0]


def _pressure(options: dict[str, Any]) -> Pressure:
    if options["load"] is not None:
        return Pressure.parse(options["load"])
    return Pressure("load", 0.9) if options["trace"] is None else Pressure("recorded")
