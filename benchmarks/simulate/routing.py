"""``benchmarks simulate routing``: routers side by side, on one to a thousand replicas.

All run the same programs on the same replicas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from typing import Any

import click

import benchmarks.workloads  # noqa: F401  # makes their names known
from agentrt.lab.commands.options import (
    ManyCommand,
    counts,
    json_flag,
    load_option,
    many,
    programs_option,
    seeds_option,
)
from agentrt.lab.commands.progress import do_runs
from agentrt.lab.commands.simulate.options import read_loads, read_sources, scale_options
from agentrt.lab.reports.compare import Series, as_dicts
from agentrt.lab.reports.policies import about_engine, about_seeds
from agentrt.lab.reports.tables import Spread, digits
from agentrt.lab.runs.contenders import DEFAULT, Contender, contender
from agentrt.lab.runs.grid import RunResult, RunSpec, Setting
from agentrt.lab.runs.machine import Machine
from agentrt.router import make_router, router_names
from benchmarks.simulate.options import (
    DEFAULT_WORKLOADS,
    depth_options,
    read_depth,
    workloads_option,
)
from benchmarks.tables import SHORT, WORKLOAD, Column, table, values

_EPILOG = """\b
Examples:
  python -m benchmarks simulate routing --workload chat,graphs8 --depth virtual --replicas 4
  python -m benchmarks simulate routing --router cost,agentix:threshold=1024 --depth virtual
  python -m benchmarks simulate routing --router cost --replicas 1,4,16,64

\b
All routers of a seed see the same programs at the same times. A load is the share of what all
replicas together can do. Depth steps knows no prompts, so there routers differ by balance
alone. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@workloads_option
@scale_options
@many("--router", metavar="NAME,…", help="Which to compare.  [default: all]")
@many("--replicas", metavar="N,…", help="On how many engines.  [default: 4]")
@load_option("Loads, bursts as b0.8.  [default: 0.9]")
@click.option("--policy", default=DEFAULT, show_default=True, metavar="NAME")
@programs_option("Number of programs for each replica.", default=50)
@seeds_option(default=3, suffix=" The first is 0.")
@depth_options
@json_flag("Print one JSON object instead of tables.")
def routing(**options: Any) -> None:
    """Compare routers over several simulated engines.

    For each: latency of programs, hit rate of the prefix caches, balance (the busiest engine's
    time over the mean), programs per second.
    """
    for name in options["router"]:
        make_router(name)
    routers = options["router"] or router_names()
    replicas = counts("--replicas", options["replicas"] or ("4",))
    machine = read_depth(options)
    one = contender(options["policy"])
    machine.check([one])
    runs = _specs(options, replicas, routers, one, machine)
    results, stop = do_runs(runs, options["jobs"])
    found = gather(sorted(results, key=lambda result: runs.index(result.spec)))
    if found:
        click.echo(_as_json(found, options) if options["as_json"] else _as_text(found, machine))
    if stop:
        raise stop


def _settings(options: Mapping[str, Any]) -> list[Setting]:
    sources = read_sources(options["workload"] or DEFAULT_WORKLOADS, options)
    loads = read_loads(options["load"] or ("0.9",))
    return [Setting(source, load, options["programs"]) for source in sources for load in loads]


def _specs(
    options: Mapping[str, Any],
    replicas: Sequence[int],
    routers: Sequence[str],
    one: Contender,
    machine: Machine,
) -> list[RunSpec]:
    """The runs, those with the same programs side by side.

    The number of programs is for each replica: it is multiplied by how many there are.
    """
    return [
        RunSpec(
            replace(setting, programs=setting.count * count),
            seed,
            one,
            replace(machine, replicas=count, router=router),
        )
        for setting, count, seed, router in product(
            _settings(options), replicas, range(options["seeds"]), routers
        )
    ]


def gather(results: Iterable[RunResult]) -> list[Series]:
    """The runs that are done, by setting, router and replicas, in the order of the first."""
    found: dict[tuple[Setting, str, int], Series] = {}
    for result in results:
        machine = result.spec.machine
        key = (result.spec.setting, machine.router, machine.replicas)
        found.setdefault(key, Series(*key)).summaries[result.spec.seed] = result.summary
    return list(found.values())


# -- the output ------------------------------------------------------------------------

_MEASURES = (
    *("mean_s", "p50_s", "p95_s", "p99_s", "slowdown"),
    *("prefix_hit_share", "balance", "throughput_per_s"),
)
_KEY = (
    *(WORKLOAD, Column("load", lambda cell: str(cell.setting.pressure))),
    *(Column("replicas", lambda cell: cell.replicas), Column("router", lambda cell: cell.name)),
)


def _as_json(found: Sequence[Series], options: Mapping[str, Any]) -> str:
    settings = {name: options[name] for name in ("policy", "programs", "seeds", "depth")}
    settings["batch"] = options["max_num_seqs"]
    cells = [
        {"router": cell.name, "replicas": cell.replicas, **values}
        for cell, values in zip(found, as_dicts(found, _MEASURES), strict=True)
    ]
    return json.dumps({"settings": settings, "cells": cells})


def _as_text(found: Sequence[Series], machine: Machine) -> str:
    head = f"{about_seeds(found[0].seeds)}.\n{about_engine(machine)}"
    parts = [head, table(found, *_KEY, *values(*_MEASURES))]
    several = [one for one in found if _others(one, found)]
    if several:
        parts.append(table(several, *_KEY, *_to_best("mean_s", found), *_to_best("p95_s", found)))
    if len({one.replicas for one in found}) > 1:
        parts.append(table(found, *_KEY, *_to_fewest(found)))
    return "\n\n".join(parts)


def _others(one: Series, found: Sequence[Series]) -> list[Series]:
    """Other routers that had the same programs on as many replicas."""
    same = (one.setting, one.replicas)
    return [
        other for other in found if other is not one and (other.setting, other.replicas) == same
    ]


def _to_best(measure: str, found: Sequence[Series]) -> list[Column]:
    """Each router over whichever of the others is best in the median."""

    def best(one: Series) -> Series:
        return min(_others(one, found), key=lambda other: other.median(measure))

    head = SHORT[measure]
    return [
        Column(f"best other, {head}", lambda one: best(one).name),
        Column(f"{head} / its", lambda one: _spread(one.ratios(measure, best(one)))),
    ]


def _spread(ratios: Sequence[float]) -> str:
    return str(Spread.of(ratios)) if ratios else "-"


def _to_fewest(found: Sequence[Series]) -> list[Column]:
    """More replicas against the fewest of the same router: medians over seeds.

    Over linear: the share of arriving programs that end while others arrive, over the same share
    with the fewest replicas.
    """

    def over(one: Series, measure: str) -> float:
        key = (one.setting.source, one.setting.pressure, one.name)
        same = [
            other
            for other in found
            if (other.setting.source, other.setting.pressure, other.name) == key
        ]
        return one.median_ratio(measure, min(same, key=lambda other: other.replicas))

    def over_linear(one: Series) -> str:
        share = over(one, "steady_per_s") / over(one, "offered_per_s")
        return "-" if isnan(share) else f"{share:.3f}"

    return [
        Column("ended in time/s", lambda one: digits(one.median("steady_per_s"))),
        Column("over linear", over_linear),
        Column("mean / fewest's", lambda one: f"{over(one, 'mean_s'):.2f}"),
        Column("P95 / fewest's", lambda one: f"{over(one, 'p95_s'):.2f}"),
    ]
