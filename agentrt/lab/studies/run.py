"""``agentrt simulate run``: several policies under one setting."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import ManyCommand, count_option, file, json_flag, policy_option
from agentrt.lab.commands.simulate.options import (
    engine_options,
    read_hints,
    read_machine,
    read_policies,
    read_scheduler,
    read_source,
    read_traces,
    scale_options,
    warn_of_sleepers,
)
from agentrt.lab.commands.simulate.progress import compared
from agentrt.lab.reports.compare import Cell, as_csv, as_dicts
from agentrt.lab.reports.policies import conditions, in_words, ratios_table, values_table
from agentrt.lab.runs import contenders
from agentrt.lab.runs.grid import RunSpec, grid
from agentrt.lab.runs.pressure import Pressure
from agentrt.lab.runs.settings import Setting, Source

_EPILOG = """\b
Examples:
  agentrt simulate run --workload mixed --load 0.95
  agentrt simulate run --workload chat --burst 0.8 --policy mlfq atlas srpt --repeat 5
  agentrt simulate run --workload lats --at-once --programs 200 --batch 64
  agentrt simulate run --trace programs.jsonl --rate 0.5 --json
  agentrt simulate run --workload react --rate 1.5 --csv > react.csv

\b
A load is the share of what the engine's slots can do: at 1 they are busy all the time.
Ratios are to the baseline with the same programs; with --repeat the median is shown,
with the least and the greatest. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--workload", metavar="NAME", help="chat, react, lats, mixed (default) or graphs8.")
@file("--trace", about="Programs from a recorded trace; by default they arrive as recorded.")
@scale_options
@policy_option("mlfq,plas,atlas,adaptive")
@click.option("--load", metavar="X", help="Poisson arrivals, share of capacity.  [default: 0.9]")
@click.option("--rate", metavar="R", help="Poisson arrivals, R programs per second.")
@click.option("--burst", metavar="X", help="A mean load of X, in bursts.")
@click.option("--at-once", is_flag=True, help="All programs at second 0.")
@count_option("--programs", about="How many.  [default: 1000; all of a trace]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="The first seed.")
@count_option("--repeat", default=1, about="With so many seeds.")
@engine_options
@json_flag("Print one JSON object instead of tables.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of tables.")
def run(**options: Any) -> None:
    """Simulate policies under one setting, on the same programs at the same times.

    For each: latency of programs (mean, P50, P95, P99), slowdown, token latency,
    throughput, makespan, where the time went, preemptions.
    """
    if options["as_json"] and options["as_csv"]:
        raise ConfigError("--json and --csv: give one of them")
    baseline = options["baseline"]
    names = read_policies(options["policy"] or ("mlfq", "plas", "atlas", "adaptive"), baseline)
    setting = Setting(_source(options), _pressure(options), options["programs"])
    seeds = list(range(options["seed"], options["seed"] + options["repeat"]))
    machine = read_machine(options)
    scheduler = read_scheduler(options)
    everyone = contenders.policies(names, scheduler, read_hints(options["hints"], names))
    specs = grid([setting], everyone, seeds, machine)
    warn_of_sleepers([setting], machine)
    with compared(specs, options["jobs"], names, baseline) as found:
        if found:
            click.echo(_told(found, specs, seeds, options), nl=not options["as_csv"])


def _source(options: dict[str, Any]) -> Source:
    """Where the programs come from; a trace is read at once, and refused if it cannot be."""
    given = options["trace"]
    if given is not None and options["workload"] is not None:
        raise ConfigError("--workload and --trace: give one of them")
    traces = read_traces([] if given is None else [given], options)
    return traces[0] if traces else read_source(options["workload"] or "mixed", options)


def _pressure(options: dict[str, Any]) -> Pressure:
    given = [n for n in ("load", "rate", "burst", "at_once") if options[n] not in (None, False)]
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{names}: give one of them")
    match given:
        case ["load"]:
            return Pressure.parse(options["load"])
        case ["burst"]:
            return Pressure.parse(f"b{options['burst']}")
        case ["rate"]:
            return Pressure.parse_rate(options["rate"])
        case ["at_once"]:
            return Pressure("at-once")
        case _:
            return Pressure("load", 0.9) if options["trace"] is None else Pressure("recorded")


def _told(
    found: Sequence[Cell], specs: Sequence[RunSpec], seeds: list[int], options: dict[str, Any]
) -> str:
    setting = found[0].setting
    common = conditions(specs, seeds, options["baseline"])
    if options["as_json"]:
        complete = sum(len(cell.seeds) for cell in found) == len(specs)
        told = {"settings": common, "complete": complete, "cells": as_dicts(found)}
        return json.dumps(told)
    if options["as_csv"]:
        return as_csv(found)
    what = f"{setting.count} programs ({setting.source.name}), arrivals: {setting.pressure}."
    parts = [f"{what} {in_words(common)}", values_table(found)]
    if len(found) > 1:
        parts.append(ratios_table(found, options["baseline"]))
    return "\n\n".join(parts)
