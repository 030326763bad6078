"""``benchmarks first-runs``: programs that an engine serves before it knows any of their kinds.

Each policy serves the same programs in virtual time with vLLM's real scheduler and KV-cache
manager, whose cache has room for everything. It begins with nothing learned. The engine then serves
the same programs once more with what it has learned and an empty cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import fmean, median
from typing import Any

import click

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.errors import ConfigError
from agentrt.lab.backends.virtual import Virtual
from agentrt.lab.commands.options import count_option, json_flag, many, seed_option, silence_vllm
from agentrt.lab.commands.progress import do_all
from agentrt.lab.driver import drive
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Outcome, quantile
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK, Contender, contenders
from benchmarks.memory.cells import with_room_for_all
from benchmarks.mixes import ALIKE, LONGEST, MIXES, UNLIKE

WANTED_UNLIKE, WANTED_ALIKE = 0.90, 1.01
"""The mean completion time that a first run may have, in multiples of stock vLLM's."""
FIGURES = {"mean": "mean", "p99": "P99", "longest": "longest"}
Ratios = Mapping[str, float]
"""A policy's completion times over stock's, by the names of `FIGURES`; ``known`` is the mean's in
the second run, where the policy learns at all."""


@click.command("first-runs")
@many("--mixes", metavar="MIX…", help=f"[default: all: {', '.join(MIXES)}]")
@many("--policy", metavar="NAME…", help=f"Policies beside {STOCK}.  [default: {DEFAULT}]")
@count_option("--seeds", about="Number of seeds.", default=5)
@seed_option
@count_option("--jobs", about="Processes.  [default: one per core]")
@json_flag("Print all ratios as one JSON line.")
def first_runs(**options: Any) -> None:
    """Completion times of programs that are new to the engine, over stock vLLM's.

    Ten mixes have unlike programs, and ten alike ones. A figure is the median over the seeds, with
    the least and the greatest; less is better. "once known" is the mean in a second run of the same
    programs.
    """
    trials = _trials(options)
    silence_vllm()
    done, stop = do_all(trials, options["jobs"], run)
    results = by_mix(done)
    if results:
        click.echo(report(results))
        if options["as_json"]:
            click.echo(json.dumps(as_json(results)))
    if stop is not None:
        raise stop


# -- runs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """A mix with a seed, and the policies that serve it."""

    mix: str
    seed: int
    policies: tuple[str, ...]


Measured = tuple[Trial, Mapping[str, Ratios]]
"""A trial's ratios to stock by policy."""


def _trials(options: dict[str, Any]) -> list[Trial]:
    for name in options["mixes"]:
        if name not in MIXES:
            raise ConfigError(f"unknown mix {name!r}; known: {', '.join(MIXES)}")
    policies = check_policies(options["policy"])
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    names = [name for name in MIXES if name in options["mixes"] or not options["mixes"]]
    return [Trial(mix, seed, policies) for mix in names for seed in seeds]


def check_policies(names: Sequence[str]) -> tuple[str, ...]:
    """The policies to compare with stock: the defaults where there are no names.

    Raises `ConfigError` for stock itself, and for a contender that is more than a policy.
    """
    policies = contenders(names or [DEFAULT])
    for one in policies:
        if one.stock or one.scheduler or one.memory > 1 or one.hints is not None:
            raise ConfigError(
                f"--policy {one.name!r}: every ratio is to {STOCK}; name a policy of agentrt's "
                f"scheduler, such as {DEFAULT}, atlas or adaptive+cost+memory"
            )
    return tuple(one.name for one in policies)


def run(trial: Trial) -> Measured:
    """Serve the programs of a trial by stock and by each policy, in this process."""
    mix = MIXES[trial.mix]
    programs = mix.programs(trial.mix, trial.seed)
    least = LONGEST // BLOCK_SIZE + 2
    options = with_room_for_all(programs, VirtualOptions(mix.slots, least, max_model_len=LONGEST))

    def serve(served_by: Contender, learned: Any = None) -> tuple[Sequence[Outcome], Any]:
        engine = Virtual(served_by.scheduling, options, StepTimeModel())
        scheduler = engine.lanes[0].engine.scheduler
        if learned is not None:
            scheduler.control("know", learned)
        ran = drive(engine, programs)
        return ran.outcomes, None if served_by.stock else scheduler.history.values()

    [stock, *others] = contenders([STOCK, *trial.policies])
    base, _ = serve(stock)
    found: dict[str, Ratios] = {}
    for policy in others:
        first, learned = serve(policy)
        second = serve(policy, learned)[0] if learned is not None else None
        found[policy.name] = ratios(base, first, second)
    return trial, found


def ratios(
    base: Sequence[Outcome], first: Sequence[Outcome], second: Sequence[Outcome] | None = None
) -> Ratios:
    """The completion times of a first run, and of a second one, over those of ``base``."""
    stock, mine = _times(base), _times(first)
    over = {name: mine[name] / stock[name] for name in FIGURES}
    return over if second is None else {**over, "known": _times(second)["mean"] / stock["mean"]}


def _times(outcomes: Sequence[Outcome]) -> dict[str, float]:
    seconds = sorted(outcome.latency_s for outcome in outcomes)
    return {"mean": fmean(seconds), "p99": quantile(seconds, 0.99), "longest": seconds[-1]}


# -- tables ------------------------------------------------------------------------------

Results = Mapping[tuple[str, str], Sequence[Ratios]]
"""By mix and policy, the ratios of each seed."""


def by_mix(done: Sequence[Measured]) -> Results:
    """The ratios by mix, in the order of `MIXES`, and by policy; seeds in ascending order."""
    results: dict[tuple[str, str], list[Ratios]] = {}
    places = list(MIXES)
    for trial, found in sorted(done, key=lambda one: (places.index(one[0].mix), one[0].seed)):
        for policy, mine in found.items():
            results.setdefault((trial.mix, policy), []).append(mine)
    return results


def report(results: Results) -> str:
    """Both tables with a line of summary per policy."""
    parts = []
    for title, mixes, wanted in (
        ("Unlike programs", UNLIKE, WANTED_UNLIKE),
        ("Programs that are alike", ALIKE, WANTED_ALIKE),
    ):
        shown = {key: seeds for key, seeds in results.items() if key[0] in mixes}
        if shown:
            parts += [f"**{title}** (completion time over stock's)", _table(shown, wanted)]
            policies = dict.fromkeys(policy for _, policy in shown)
            parts.append("\n".join(summary(title, shown, name, wanted) for name in policies))
    return "\n\n".join(parts)


def _table(results: Results, wanted: float) -> str:
    head = ["mix", "programs", "slots", "policy", *FIGURES.values(), "once known"]
    rows = []
    for (name, policy), seeds in results.items():
        mix = MIXES[name]
        groups = ", ".join(f"{one.count} {one.type or one.kind}" for one in mix.groups)
        figures = [spread(seeds, figure) for figure in (*FIGURES, "known")]
        verdict = "yes" if reached(seeds, "mean", wanted) else "no"
        rows.append([name, groups, mix.slots, policy, *figures, verdict])
    return markdown([*head, f"mean at most {wanted:.2f}"], rows)


def spread(seeds: Sequence[Ratios], figure: str) -> str:
    """The median of a figure over the seeds, with the least and the greatest value."""
    values = [one[figure] for one in seeds if figure in one]
    return "{:.3f} ({:.3f}-{:.3f})".format(*astuple(Spread.of(values))) if values else "-"


def reached(seeds: Sequence[Ratios], figure: str, wanted: float) -> bool:
    """Whether the median of a figure, in the three decimals that tables show, is at most this."""
    return round(median(one[figure] for one in seeds), 3) <= wanted


def summary(title: str, results: Results, policy: str, wanted: float) -> str:
    """How many mixes reach what is wanted, and the mean over the mixes."""
    mine = {mix: seeds for (mix, name), seeds in results.items() if name == policy}
    means = [median(one["mean"] for one in seeds) for seeds in mine.values()]
    count = sum(reached(seeds, "mean", wanted) for seeds in mine.values())
    return (
        f"{title}, {policy}: the mean completion time is {fmean(means):.3f} of stock's over "
        f"{len(mine)} mixes; at most {wanted:.2f} in {count} of them."
    )


def as_json(results: Results) -> dict[str, Any]:
    """All ratios of each seed, for a program to read."""
    return {
        "cells": [
            {"mix": mix, "alike": MIXES[mix].alike, "policy": policy, "by_seed": list(seeds)}
            for (mix, policy), seeds in results.items()
        ]
    }
