"""``agentrt bench routing``: what it costs to route a call."""

from __future__ import annotations

import json
from typing import Any

import click

from agentrt.lab.commands.bench.values import counts, note
from agentrt.lab.commands.simulate.options import ManyCommand, many


@click.command(cls=ManyCommand)
@many("--router", metavar="NAME…", help="Which.  [default: all]")
@many("--replicas", metavar="N…", help="Over how many engines.  [default: 1,4,16,64]")
@many("--live", metavar="N…", help="How many live programs.  [default: 10,1000,10000]")
@click.option("--calls", type=click.IntRange(min=1), default=2000, show_default=True, metavar="N")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def routing(**options: Any) -> None:
    """The CPU time that a router spends on a call, and the memory that it takes.

    Needs no model: programs whose prompts grow, replicas whose caches fill up, and notes of
    what they store and remove.
    """
    from agentrt.lab.bench.routing import (
        as_dicts,
        conditions,
        costs_table,
        footprint,
        footprint_table,
        measure,
    )
    from agentrt.router import make_router, router_names

    routers = list(options["router"]) or router_names()
    for name in routers:
        make_router(name)
    replicas = counts("--replicas", options["replicas"] or ("1", "4", "16", "64"))
    live = counts("--live", options["live"] or ("10", "1000", "10000"))
    samples = measure(
        routers, replicas, live, options["repeat"], options["calls"], options["seed"], tell=note
    )
    footprints = {}
    for name in routers:
        note(f"memory of {max(live)} live programs under {name}")
        footprints[name] = footprint(name, max(replicas), max(live), options["seed"])
    click.echo(f"{conditions()}\n\n{costs_table(samples)}\n\n{footprint_table(footprints)}")
    if options["as_json"]:
        click.echo(json.dumps(as_dicts(samples)))
