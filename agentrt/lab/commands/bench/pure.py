"""``agentrt bench decisions`` and ``simulator``: what scheduling costs without an engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from agentrt.lab.commands.bench.values import counts, note
from agentrt.lab.commands.simulate.options import ManyCommand, many

_SOME = ("fcfs", "atlas", "adaptive")
"""What the simulator is timed under by default: the plainest, the paper's, and ours."""


@click.command(cls=ManyCommand)
@many("--policies", metavar="NAME…", help="Which, beside fcfs.  [default: all]")
@many("--live", metavar="N…", help="How many programs wait.  [default: 10,1000,100000]")
@click.option("--steps", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N")
@click.option("--repeat", type=click.IntRange(min=1), default=5, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def decisions(**options: Any) -> None:
    """The CPU time of a policy's decisions, by how many programs are live.

    Needs no model: the real queues and process table, 64 calls that run, and so many
    programs with a call that waits. In each step a call ends and another arrives.
    """
    from agentrt.lab.bench.decisions import as_dicts, costs_table, growth_table, measure
    from agentrt.scheduler.policies import policy_names

    names = _policies(options["policies"] or policy_names())
    live = counts("--live", options["live"] or ("10", "1000", "100000"))
    samples = measure(names, live, options["repeat"], options["steps"], options["seed"], tell=note)
    click.echo(f"{costs_table(samples)}\n\n{growth_table(samples)}")
    if options["as_json"]:
        click.echo(json.dumps(as_dicts(samples)))


@click.command(cls=ManyCommand)
@many("--policies", metavar="NAME…", help=f"Which, beside fcfs.  [default: {', '.join(_SOME)}]")
@many("--programs", metavar="N…", help="How many are simulated.  [default: 1000,10000]")
@click.option("--workload", default="mixed", show_default=True, metavar="NAME")
@click.option("--load", default="0.95", show_default=True, metavar="X", help="Share of capacity.")
@click.option(
    "--live",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="How many programs wait where memory is measured.",
)
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--seed", type=int, default=0, show_default=True, metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as one JSON line.")
def simulator(**options: Any) -> None:
    """How fast the step simulator is, and the memory that a live program takes."""
    from agentrt.lab.bench.simulator import (
        as_dict,
        footprint,
        footprint_table,
        measure,
        speed_table,
    )
    from agentrt.scheduler.policies import policy_names

    some = [name for name in _SOME if name in policy_names()]
    names = _policies(options["policies"] or some)
    sizes = counts("--programs", options["programs"] or ("1000", "10000"))
    timings = measure(
        *(names, sizes, options["workload"], options["load"]),
        *(options["repeat"], options["seed"], note),
    )
    footprints = {}
    for name in names:
        note(f"memory of {options['live']} live programs under {name}")
        footprints[name] = footprint(name, options["live"], options["seed"])
    click.echo(f"{speed_table(timings)}\n\n{footprint_table(footprints)}")
    if options["as_json"]:
        click.echo(json.dumps(as_dict(timings, footprints)))


def _policies(names: Sequence[str]) -> list[str]:
    """The policies by name, the baseline first. Raises `ConfigError` for an unknown one."""
    from agentrt.scheduler.policies import policy_class

    policies = list(dict.fromkeys(["fcfs", *names]))
    for name in policies:
        policy_class(name)
    return policies
