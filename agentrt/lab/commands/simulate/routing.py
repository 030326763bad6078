"""``agentrt simulate routing``: routers side by side, on one to a thousand replicas."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.simulate.options import (
    ManyCommand,
    check_plot,
    cores,
    machine_options,
    many,
    read_machine,
    seeds_option,
)
from agentrt.lab.commands.simulate.sources import read_source, read_traces, scale_options

if TYPE_CHECKING:
    from agentrt.lab.runs.machine import Machine
    from agentrt.lab.runs.settings import Setting
    from agentrt.lab.studies.routing import Routed

_EPILOG = """\b
Examples:
  agentrt simulate routing --workload chat graphs8 --depth virtual --replicas 4
  agentrt simulate routing --router cost agentix:threshold=1024 --depth virtual --seeds 5
  agentrt simulate routing --router cost --replicas 1 4 16 64 --plot scaling.png

\b
All routers of a seed see the same programs at the same times. A load is the share of what all
replicas together can do. Depth steps knows no prompts, so there routers differ by balance
alone. Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@many("--workload", metavar="NAME…", help="chat, react, lats, mixed, graphs8.  [default: mixed]")
@many("--trace", metavar="FILE…", help="Programs drawn from recorded traces.")
@scale_options
@many("--router", metavar="NAME…", help="Which to compare.  [default: all]")
@many("--replicas", metavar="N…", help="On how many engines.  [default: 4]")
@many("--load", metavar="X…", help="Loads, bursts as b0.8.  [default: 0.9]")
@click.option("--policy", default="atlas", show_default=True, metavar="NAME")
@click.option(
    "--programs",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="How many for each replica.",
)
@seeds_option
@machine_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw the latencies; with several numbers of replicas, how they scale.",
)
def routing(**options: Any) -> None:
    """Compare routers over several simulated engines.

    For each: latency of programs, hit rate of the prefix caches, balance (the busiest engine's
    time over the mean), programs per second.
    """
    from agentrt.lab.commands.simulate.progress import do_runs
    from agentrt.lab.oracles import check_policy
    from agentrt.lab.studies.routing import gather, specs
    from agentrt.scheduler import SchedulerConfig

    check_plot(options["plot"])
    routers = _routers(options["router"])
    replicas = _counts(options["replicas"] or ("4",))
    machine = read_machine(options)
    scheduler = SchedulerConfig(policy=options["policy"])
    check_policy(options["policy"])
    seeds = list(range(options["seeds"]))
    runs = specs(_settings(options), replicas, routers, seeds, scheduler, machine)
    results, stop = do_runs(runs, options["jobs"] or cores())
    found = gather(results)
    if found:
        _draw(found, options["plot"])
        click.echo(_as_json(found, options) if options["as_json"] else _as_text(found, machine))
    if stop:
        raise stop


def _routers(names: Sequence[str]) -> list[str]:
    """Routers by name; commas within a name's options were taken for commas between names."""
    from agentrt.router import make_router, router_names

    for name in names:
        make_router(name)
    return list(names) or router_names()


def _counts(texts: Sequence[str]) -> list[int]:
    for text in texts:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"--replicas {text!r}: give a number from 1 up")
    return [int(text) for text in texts]


def _settings(options: dict[str, Any]) -> list[Setting]:
    from agentrt.lab.runs.pressure import Pressure
    from agentrt.lab.runs.settings import Setting

    traces = read_traces([Path(name) for name in options["trace"]], options)
    names = options["workload"] or (() if traces else ("mixed",))
    sources = [*(read_source(name, options) for name in names), *traces]
    loads = [Pressure.parse(text) for text in options["load"] or ("0.9",)]
    return [Setting(source, load, options["programs"]) for source in sources for load in loads]


# -- what is told ----------------------------------------------------------------------


def _as_json(found: Sequence[Routed], options: dict[str, Any]) -> str:
    from agentrt.lab.studies.routing import MEASURES

    settings = {name: options[name] for name in ("policy", "programs", "seeds", "batch", "depth")}
    cells = [
        {
            "workload": one.setting.source.name,
            "arrivals": str(one.setting.pressure),
            "replicas": one.replicas,
            "router": one.router,
            "by_seed": {
                name: [None if math.isnan(value) else value for value in one.values(name)]
                for name in MEASURES
            },
        }
        for one in found
    ]
    return json.dumps({"settings": settings, "cells": cells})


def _as_text(found: Sequence[Routed], machine: Machine) -> str:
    from agentrt.lab.reports.tables import markdown
    from agentrt.lab.studies.routing import MEASURES, groups

    head = ["workload", "load", "replicas", "router", *MEASURES.values()]
    rows = [
        [*_key(one), one.router, *(_spread(one.values(name)) for name in MEASURES)] for one in found
    ]
    seeds = len(found[0].summaries)
    depth = "the step simulator" if machine.depth == "steps" else "virtual engines"
    told = f"Medians over {seeds} seeds (least-most), {depth}, batch {machine.batch}."
    parts = [told, markdown(head, rows)]
    if any(len(group) > 1 for group in groups(found)):
        parts.append(_against(found))
    if len({one.replicas for one in found}) > 1:
        parts.append(_scaling(found))
    return "\n\n".join(parts)


def _key(one: Routed) -> list[str]:
    return [one.setting.source.name, str(one.setting.pressure), str(one.replicas)]


def _against(found: Sequence[Routed]) -> str:
    """Each router over whichever of the others is best in the median."""
    from agentrt.lab.reports.tables import Spread, markdown
    from agentrt.lab.studies.routing import best, groups

    rows = []
    for group in groups(found):
        for one in group if len(group) > 1 else ():
            row = [*_key(one), one.router]
            for measure in ("mean_s", "p95_s"):
                other = best(group, measure, one)
                ratios = [] if other is None else one.ratios(measure, other)
                row += [other.router if other else "-", str(Spread.of(ratios)) if ratios else "-"]
            rows.append(row)
    head = ["workload", "load", "replicas", "router"]
    head += ["best other, mean", "mean / its", "best other, P95", "P95 / its"]
    return markdown(head, rows)


def _scaling(found: Sequence[Routed]) -> str:
    from agentrt.lab.reports.tables import markdown
    from agentrt.lab.studies.routing import scaling

    rows = [
        [
            one.setting.source.name,
            str(one.setting.pressure),
            one.router,
            one.replicas,
            _digits(one.steady_per_s),
            "-" if math.isnan(one.linear) else f"{one.linear:.3f}",
            f"{one.mean:.2f}",
            f"{one.p95:.2f}",
        ]
        for one in scaling(found)
    ]
    head = ["workload", "load", "router", "replicas", "programs/s", "over linear"]
    return markdown([*head, "mean / fewest's", "P95 / fewest's"], rows)


def _spread(values: Sequence[float]) -> str:
    from agentrt.lab.reports.tables import Spread

    if any(math.isnan(value) for value in values):
        return "-"
    spread = Spread.of(values)
    if len(values) == 1:
        return _digits(spread.median)
    return f"{_digits(spread.median)} ({_digits(spread.least)}-{_digits(spread.most)})"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _draw(found: Sequence[Routed], path: Path | None) -> None:
    from agentrt.lab.reports.routing_plots import draw_routers, draw_scaling

    if path is None:
        return
    several = len({one.replicas for one in found}) > 1
    (draw_scaling if several else draw_routers)(found, path)
