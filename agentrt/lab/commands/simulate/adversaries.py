"""``agentrt simulate adversaries``: what a tenant that games a policy does to the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.simulate.options import (
    ManyCommand,
    many,
    read_policies,
    seeds_option,
    slots_option,
)

if TYPE_CHECKING:
    from agentrt.lab.studies.adversaries import Scenario
    from agentrt.lab.studies.gaming import Effect

_EPILOG = """\b
Examples:
  agentrt simulate adversaries
  agentrt simulate adversaries --policy adaptive --load 0.9 --scenario split-2 split-4
  agentrt simulate adversaries --programs 1000 --batch 32 --seeds 5 --json > effects.json

\b
A fourth of the programs is the gamer's. Ratios are to the same programs at the same times,
honestly described: above 1 is worse; medians over the seeds, with the least and the greatest.
Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_LOADS = ("0.9", "b0.8")
_COMPARED = ("atlas", "fcfs")
_MEASURES = {
    "mean": "others' mean",
    "p99": "others' P99",
    "slowdown": "others' slowdown",
    "gamer": "gamer's mean",
}
"""Fields of `Effect` that are ratios, by the heads of their columns."""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@click.option("--policy", default="adaptive", show_default=True, metavar="NAME")
@many("--scenario", metavar="NAME…", help="Which ways to game it.  [default: all]")
@many("--load", metavar="X…", help=f"Loads, bursts as b0.8.  [default: {','.join(_LOADS)}]")
@click.option(
    "--programs",
    type=click.IntRange(min=12),
    default=600,
    show_default=True,
    metavar="N",
    help="How many, the gamer's included.",
)
@slots_option(16, "How many calls run at a time.")
@seeds_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def adversaries(**options: Any) -> None:
    """Measure what a tenant that games a policy does to the others.

    It splits its programs, lies about their types and sizes, or teaches the scheduler a
    falsehood; under atlas and fcfs, too, to compare.
    """
    from agentrt.lab.commands.simulate.progress import counting
    from agentrt.lab.runs.machine import Machine
    from agentrt.lab.runs.pressure import Pressure
    from agentrt.lab.studies.gaming import effects, run_count

    scenarios = _scenarios(options["scenario"])
    policies = _policies(options["policy"])
    loads = [Pressure.parse(text) for text in options["load"] or _LOADS]
    seeds = range(options["seeds"])
    with counting(run_count(scenarios, policies) * len(loads) * len(seeds)) as done:
        found = list(
            effects(
                scenarios,
                policies,
                loads,
                seeds,
                programs=options["programs"],
                machine=Machine(options["batch"]),
                done=done,
            )
        )
    if options["as_json"]:
        click.echo(_as_json(found, options))
    else:
        click.echo(_as_text(scenarios, found, policies, options))


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    """Those of these names in their own order, or all. Raises `ConfigError` for an unknown one."""
    from agentrt.lab.studies.adversaries import SCENARIOS

    for name in names:
        if name not in SCENARIOS:
            raise ConfigError(f"unknown scenario {name!r}; known: {', '.join(SCENARIOS)}")
    return [scenario for name, scenario in SCENARIOS.items() if not names or name in names]


def _policies(name: str) -> list[str]:
    """The policy that is gamed, first, and those beside it."""
    from agentrt.lab.runs.contenders import HINTED

    if name.endswith(HINTED):
        raise ConfigError(
            f"--policy {name}: leave {HINTED} out; scenarios say what hints there are"
        )
    return read_policies(_COMPARED, name)


def _as_json(found: Sequence[Effect], options: dict[str, Any]) -> str:
    settings = {name: options[name] for name in ("policy", "programs", "batch", "seeds")}
    return json.dumps({"settings": settings, "effects": [asdict(effect) for effect in found]})


def _as_text(
    scenarios: Sequence[Scenario],
    found: Sequence[Effect],
    policies: Sequence[str],
    options: dict[str, Any],
) -> str:
    """A list of the scenarios, and a row for each under each load."""
    from agentrt.lab.reports.tables import markdown

    head = (
        f"{options['programs']} programs (mixed), batch {options['batch']}, seeds "
        f"0-{options['seeds'] - 1}; {policies[0]} with each lie over {policies[0]} without it, "
        "median (least-most). worst slowdown: without > with. The last columns: the others' "
        "mean under that policy over theirs under fcfs, both with the lie."
    )
    lies = "\n".join(f"- {scenario.name}: {scenario.text}" for scenario in scenarios)
    keys = dict.fromkeys((effect.load, effect.scenario) for effect in found)
    names = {scenario.name: index for index, scenario in enumerate(scenarios)}
    rows = [_row(key, found, policies) for key in sorted(keys, key=lambda k: (k[0], names[k[1]]))]
    over = [f"{policy} / fcfs" for policy in policies if policy != "fcfs"]
    columns = ["load", "scenario", *_MEASURES.values(), "worst slowdown", *over]
    return f"{head}\n\n{lies}\n\n{markdown(columns, rows)}"


def _row(key: tuple[str, str], found: Sequence[Effect], policies: Sequence[str]) -> list[str]:
    from statistics import median

    from agentrt.lab.reports.tables import Spread

    mine = {
        policy: [e for e in found if (e.load, e.scenario) == key and e.policy == policy]
        for policy in policies
    }
    gamed = mine[policies[0]]
    ratios = [str(Spread.of([getattr(e, name) for e in gamed])) for name in _MEASURES]
    before, after = median(e.worst_before for e in gamed), median(e.worst for e in gamed)
    over = [
        median(e.mean_s / f.mean_s for e, f in zip(mine[policy], mine["fcfs"], strict=True))
        for policy in policies
        if policy != "fcfs"
    ]
    return [*key, *ratios, f"{before:.1f} > {after:.1f}", *(f"{ratio:.2f}" for ratio in over)]
