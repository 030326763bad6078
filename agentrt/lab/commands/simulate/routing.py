"""``agentrt simulate routing``: routers side by side, on one to a thousand replicas.

All run the same programs on the same replicas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import isnan
from typing import Any

import click

from agentrt.lab.commands.options import ManyCommand, count_option, counts, json_flag, many
from agentrt.lab.commands.simulate.options import (
    machine_options,
    read_loads,
    read_machine,
    read_sources,
    scale_options,
    seeds_option,
    workloads_option,
)
from agentrt.lab.commands.simulate.progress import do_runs
from agentrt.lab.oracles import check_policy
from agentrt.lab.reports.compare import Cell, by_seed
from agentrt.lab.reports.policies import value
from agentrt.lab.reports.tables import Spread, digits, markdown
from agentrt.lab.runs.contenders import Contender
from agentrt.lab.runs.grid import RunResult, RunSpec
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Setting
from agentrt.router import make_router, router_names
from agentrt.scheduler import SchedulerConfig

_EPILOG = """\b
Examples:
  agentrt simulate routing --workload chat graphs8 --depth virtual --replicas 4
  agentrt simulate routing --router cost agentix:threshold=1024 --depth virtual --seeds 5
  agentrt simulate routing --router cost --replicas 1 4 16 64

\b
All routers of a seed see the same programs at the same times. A load is the share of what all
replicas together can do. Depth steps knows no prompts, so there routers differ by balance
alone. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
MEASURES = {
    "mean_s": "mean, s",
    "p50_s": "P50, s",
    "p95_s": "P95, s",
    "p99_s": "P99, s",
    "slowdown": "slowdown",
    "prefix_hit_share": "hit rate",
    "balance": "balance",
    "throughput_per_s": "programs/s",
}
"""Fields of `Summary` that routers are compared by, with the heads of their columns."""
_KEY = ("workload", "load", "replicas", "router")


@click.command(cls=ManyCommand, epilog=_EPILOG)
@workloads_option
@scale_options
@many("--router", metavar="NAME…", help="Which to compare.  [default: all]")
@many("--replicas", metavar="N…", help="On how many engines.  [default: 4]")
@many("--load", metavar="X…", help="Loads, bursts as b0.8.  [default: 0.9]")
@click.option("--policy", default="atlas", show_default=True, metavar="NAME")
@count_option("--programs", default=50, about="How many for each replica.")
@seeds_option
@machine_options
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
    machine = read_machine(options)
    check_policy(options["policy"])
    runs = _specs(options, replicas, routers, machine)
    results, stop = do_runs(runs, options["jobs"])
    found = gather(sorted(results, key=lambda result: runs.index(result.spec)))
    if found:
        click.echo(_as_json(found, options) if options["as_json"] else _as_text(found, machine))
    if stop:
        raise stop


def _settings(options: Mapping[str, Any]) -> list[Setting]:
    sources = read_sources(options)
    loads = read_loads(options["load"] or ("0.9",))
    return [Setting(source, load, options["programs"]) for source in sources for load in loads]


def _specs(
    options: Mapping[str, Any],
    replicas: Sequence[int],
    routers: Sequence[str],
    machine: Machine,
) -> list[RunSpec]:
    """The runs, those with the same programs side by side.

    The number of programs is for each replica: it is multiplied by how many there are.
    """
    return [
        RunSpec(
            replace(setting, programs=setting.count * count),
            seed,
            Contender(SchedulerConfig(policy=options["policy"])),
            replace(machine, replicas=count, router=router),
        )
        for setting, count, seed, router in product(
            _settings(options), replicas, range(options["seeds"]), routers
        )
    ]


def gather(results: Iterable[RunResult]) -> list[Cell]:
    """The runs that are done, by setting, router and replicas, in the order of the first."""
    found: dict[tuple[Setting, str, int], Cell] = {}
    for result in results:
        machine = result.spec.machine
        key = (result.spec.setting, machine.router, machine.replicas)
        found.setdefault(key, Cell(*key)).summaries[result.spec.seed] = result.summary
    return list(found.values())


def groups(found: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Those that ran the same programs on as many replicas, together."""
    for key in dict.fromkeys((one.setting, one.replicas) for one in found):
        yield [one for one in found if (one.setting, one.replicas) == key]


def _what(one: Cell) -> tuple[str, str, str]:
    return one.setting.source.name, str(one.setting.pressure), one.name


# -- the output ------------------------------------------------------------------------


def _as_json(found: Sequence[Cell], options: Mapping[str, Any]) -> str:
    settings = {name: options[name] for name in ("policy", "programs", "seeds", "batch", "depth")}
    cells = [
        {
            "workload": one.setting.source.name,
            "arrivals": str(one.setting.pressure),
            "replicas": one.replicas,
            "router": one.name,
            "by_seed": {name: by_seed(one, name) for name in MEASURES},
        }
        for one in found
    ]
    return json.dumps({"settings": settings, "cells": cells})


def _as_text(found: Sequence[Cell], machine: Machine) -> str:
    rows = [[*_key(one), *(value(one, name, shares=()) for name in MEASURES)] for one in found]
    depth = "the step simulator" if machine.depth == "steps" else "virtual engines"
    seeds = len(found[0].summaries)
    head = f"Medians over {seeds} seeds (least-most), {depth}, batch {machine.batch}."
    parts = [head, markdown([*_KEY, *MEASURES.values()], rows)]
    if any(len(group) > 1 for group in groups(found)):
        parts.append(_against(found))
    if len({one.replicas for one in found}) > 1:
        parts.append(_scaling(found))
    return "\n\n".join(parts)


def _key(one: Cell) -> list[str]:
    return [one.setting.source.name, str(one.setting.pressure), str(one.replicas), one.name]


def _against(found: Sequence[Cell]) -> str:
    """Each router over whichever of the others is best in the median."""
    rows = [
        [*_key(one), *_to_best(one, group, "mean_s"), *_to_best(one, group, "p95_s")]
        for group in groups(found)
        if len(group) > 1
        for one in group
    ]
    head = ["best other, mean", "mean / its", "best other, P95", "P95 / its"]
    return markdown([*_KEY, *head], rows)


def _to_best(one: Cell, group: Sequence[Cell], measure: str) -> list[str]:
    best = min(
        (other for other in group if other is not one), key=lambda other: other.median(measure)
    )
    ratios = one.ratios(measure, best)
    return [best.name, str(Spread.of(ratios)) if ratios else "-"]


def _scaling(found: Sequence[Cell]) -> str:
    """More replicas against the fewest, for each router: medians over seeds.

    Over linear: the share of arriving programs that end while others arrive, over the same share
    with the fewest replicas.
    """
    rows = []
    for one in found:
        same = [other for other in found if _what(other) == _what(one)]
        fewest = min(same, key=lambda other: other.replicas)
        steady, offered, mean, p95 = (
            one.median_ratio(measure, fewest)
            for measure in ("steady_per_s", "offered_per_s", "mean_s", "p95_s")
        )
        linear = "-" if isnan(steady / offered) else f"{steady / offered:.3f}"
        per_s = digits(one.median("steady_per_s"))
        rows.append([*_what(one), one.replicas, per_s, linear, f"{mean:.2f}", f"{p95:.2f}"])
    head = ["workload", "load", "router", "replicas", "programs/s", "over linear"]
    return markdown([*head, "mean / fewest's", "P95 / fewest's"], rows)
