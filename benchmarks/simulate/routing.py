"""``benchmarks simulate routing``: compares routers on one or more replicas.

All routers get the same programs and the same replicas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from typing import Any

import click

from agentrt.lab.commands.options import (
    ManyCommand,
    json_flag,
    many,
    programs_option,
    seeds_option,
    text_option,
)
from agentrt.lab.commands.progress import finished
from agentrt.lab.commands.simulate import (
    read_sources,
    scale_options,
)
from agentrt.lab.reports.compare import Series, about_seeds, as_dicts
from agentrt.lab.reports.tables import Spread, digits
from agentrt.lab.runs.contenders import DEFAULT, Contender, contender
from agentrt.lab.runs.grid import (
    RunResult,
    RunSpec,
    Setting,
)
from agentrt.lab.runs.machine import Machine
from agentrt.router import make_router, router_names
from benchmarks.harness import Column, table
from benchmarks.options import (
    counts,
    load_option,
)
from benchmarks.simulate.options import (
    DEFAULT_WORKLOADS,
    depth_options,
    read_depth,
    read_loads,
    workloads_option,
)
from benchmarks.summaries import do
from benchmarks.tables import SHORT, WORKLOAD, median_ratio, values
from benchmarks.workloads.source import WorkloadSource

_EPILOG = """\b
Examples:
  python -m benchmarks simulate routing --workload chat,graphs8 --depth virtual --replicas 4
  python -m benchmarks simulate routing --router cost,agentix:threshold=1024 --depth virtual
  python -m benchmarks simulate routing --router cost --replicas 1,4,16,64

\b
With the same seed, all routers get the same programs at the same times. A load is a share of the
capacity of all replicas together. Programs have no prompts with --depth steps, so the routers then
differ only in balance.
Exit codes: 0 done; 1 a process of the simulation died; 2 bad usage; 130 Ctrl-C."""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@workloads_option
@scale_options
@many("--router", metavar="NAME,…", help="Routers to compare.  [default: all]")
@many("--replicas", metavar="N,…", help="Numbers of engines.  [default: 4]")
@load_option(
    "Loads, as shares of the capacity of all engines; b0.8 is a mean load of 0.8 in bursts.  "
    "[default: 0.9]"
)
@text_option("--policy", "NAME", "Policy of the engines.", default=DEFAULT)
@programs_option("Number of programs for each replica.", default=50)
@seeds_option(default=3, first="0")
@depth_options
@json_flag("Print one JSON object instead of tables.")
def routing(**options: Any) -> None:
    """Compare routers over several simulated engines.

    Prints for each router the latency of programs, the hit rate of the prefix caches, the balance
    (busy time of the busiest engine over the mean), and programs per second.
    """
    for name in options["router"]:
        make_router(name)
    routers = options["router"] or router_names()
    replicas = counts("--replicas", options["replicas"] or ("4",))
    machine = read_depth(options)
    policy = contender(options["policy"])
    runs = _specs(options, replicas, routers, policy, machine)
    for spec in runs:
        spec.machine.check([policy])
    with finished(runs, options["jobs"], do) as results:
        series = gather(results.values())
        if series:
            click.echo(
                _as_json(series, options) if options["as_json"] else _as_text(series, machine)
            )


def _settings(options: Mapping[str, Any]) -> list[Setting]:
    sources = read_sources(options["workload"] or DEFAULT_WORKLOADS, options, WorkloadSource)
    loads = read_loads(options["load"] or ("0.9",))
    return [Setting(source, load, options["programs"]) for source in sources for load in loads]


def _specs(
    options: Mapping[str, Any],
    replicas: Sequence[int],
    routers: Sequence[str],
    policy: Contender,
    machine: Machine,
) -> list[RunSpec]:
    """Return the runs. Runs with the same programs are consecutive.

    The requested number of programs is the number for each replica, so it is multiplied by the
    number of replicas.
    """
    return [
        RunSpec(
            replace(setting, programs=setting.count * count),
            seed,
            policy,
            replace(machine, replicas=count, router=router),
        )
        for setting, count, seed, router in product(
            _settings(options), replicas, range(options["seeds"]), routers
        )
    ]


def gather(results: Iterable[RunResult]) -> list[Series]:
    """Return the finished runs by setting, router and replicas, in order of first occurrence."""
    series: dict[tuple[Setting, str, int], Series] = {}
    for result in results:
        machine = result.spec.machine
        key = (result.spec.setting, machine.router, machine.replicas)
        series.setdefault(key, Series(*key)).summaries[result.spec.seed] = result.summary
    return list(series.values())


# -- the output ------------------------------------------------------------------------

_MEASURES = (
    *("mean_s", "p50_s", "p95_s", "p99_s", "slowdown"),
    *("prefix_hit_share", "balance", "throughput_per_s"),
)
_KEY = (
    *(WORKLOAD, Column("load", lambda cell: str(cell.setting.pressure))),
    *(Column("replicas", lambda cell: cell.replicas), Column("router", lambda cell: cell.name)),
)


def _as_json(series: Sequence[Series], options: Mapping[str, Any]) -> str:
    settings = {name: options[name] for name in ("policy", "programs", "seeds", "depth")}
    settings["batch"] = options["max_num_seqs"]
    cells = [
        {"router": cell.name, "replicas": cell.replicas, **values}
        for cell, values in zip(series, as_dicts(series, _MEASURES), strict=True)
    ]
    return json.dumps({"settings": settings, "cells": cells})


def _as_text(series: Sequence[Series], machine: Machine) -> str:
    head = f"{about_seeds(series[0].seeds)}.\n{machine.in_words()}"
    parts = [head, table(series, *_KEY, *values(*_MEASURES))]
    several = [cell for cell in series if _others(cell, series)]
    if several:
        parts.append(table(several, *_KEY, *_to_best("mean_s", series), *_to_best("p95_s", series)))
    if len({cell.replicas for cell in series}) > 1:
        parts.append(table(series, *_KEY, *_to_fewest(series)))
    return "\n\n".join(parts)


def _others(cell: Series, series: Sequence[Series]) -> list[Series]:
    """Return the other routers with the same programs and the same number of replicas."""
    same = (cell.setting, cell.replicas)
    return [
        other for other in series if other is not cell and (other.setting, other.replicas) == same
    ]


def _compared(cell: Series, other: Series) -> Series:
    """Return the series with another series as its baseline."""
    return replace(cell, baseline=other.summaries)


def _to_best(measure: str, series: Sequence[Series]) -> list[Column]:
    """Return columns that compare each router with the best other router, by the median."""

    def best(cell: Series) -> Series:
        return min(_others(cell, series), key=lambda other: other.median(measure))

    head = SHORT[measure]
    return [
        Column(f"best other, {head}", lambda cell: best(cell).name),
        Column(
            f"{head} / that of best other",
            lambda cell: _spread(_compared(cell, best(cell)).ratios(measure)),
        ),
    ]


def _spread(ratios: Sequence[float]) -> str:
    return str(Spread.of(ratios)) if ratios else "-"


def _to_fewest(series: Sequence[Series]) -> list[Column]:
    """Return columns that compare a number of replicas with the smallest number, for the same
    router (medians over seeds).

    "Over linear" compares the shares of programs that end by the last arrival: the share with
    this number of replicas, divided by the share with the smallest number.
    """

    def over(cell: Series, measure: str) -> float:
        key = (cell.setting.source, cell.setting.pressure, cell.name)
        same = [
            other
            for other in series
            if (other.setting.source, other.setting.pressure, other.name) == key
        ]
        fewest = min(same, key=lambda other: other.replicas)
        return median_ratio(_compared(cell, fewest), measure)

    def over_linear(cell: Series) -> str:
        share = over(cell, "steady_per_s") / over(cell, "offered_per_s")
        return "-" if isnan(share) else f"{share:.3f}"

    return [
        Column("ended in time/s", lambda cell: digits(cell.median("steady_per_s"))),
        Column("over linear", over_linear),
        Column("mean / with fewest", lambda cell: f"{over(cell, 'mean_s'):.2f}"),
        Column("P95 / with fewest", lambda cell: f"{over(cell, 'p95_s'):.2f}"),
    ]
