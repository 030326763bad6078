"""``benchmarks first-runs``: programs of types that the engine has not seen before.

Each policy serves the same programs in virtual time with vLLM's real scheduler and KV-cache
manager, whose cache has room for everything. The engine starts without a history. Then it serves
the same programs again, with the history of the first run and an empty cache.
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
from agentrt.lab.commands.options import (
    ManyCommand,
    jobs_option,
    json_flag,
    policy_option,
    seed_option,
    seeds_option,
    silence_vllm,
    workload_option,
)
from agentrt.lab.driver import drive
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Outcome, quantile
from agentrt.lab.reports.tables import Spread, markdown
from agentrt.lab.runs.contenders import DEFAULT, STOCK, contender, contenders
from benchmarks.cells import Cell, Load, cells_of, check_names, measured
from benchmarks.harness import Figures
from benchmarks.memory.cells import with_room_for_all
from benchmarks.mixes import ALIKE, LONGEST, MIXES, UNLIKE

WANTED_UNLIKE, WANTED_ALIKE = 0.90, 1.01
"""The highest acceptable mean completion time of a first run, as a multiple of stock vLLM's."""
FIGURES = {"mean": "mean", "p99": "P99", "longest": "longest"}
Ratios = Mapping[str, float]
"""Ratios of a policy's completion times to stock's, by the names of `FIGURES`. ``known`` is the
ratio of the means in the second run, if the policy learns.
"""


@click.command("first-runs", cls=ManyCommand)
@workload_option(f"Mixes of programs.  [default: all: {', '.join(MIXES)}]", former=["--mixes"])
@policy_option(f"Policies beside {STOCK}.  [default: {DEFAULT}]")
@seeds_option(default=5)
@seed_option
@jobs_option
@json_flag("Print all ratios as one JSON line.")
def first_runs(**options: Any) -> None:
    """Compare completion times of programs that are new to the engine with stock vLLM's.

    In ten mixes the programs differ, in ten they are alike. Each figure is the median ratio to
    stock over the seeds, with the least and the greatest; less is better. "once known" is the mean
    in a second run of the same programs.
    """
    planned = _cells(options)
    silence_vllm()
    with measured(planned, figures, options["jobs"]) as runs:
        results = {
            (mix.name, policy): seeds for (mix, policy), seeds in runs.over(STOCK, ratios).items()
        }
        if results:
            click.echo(report(results))
            if options["as_json"]:
                click.echo(json.dumps(as_json(results)))


# -- runs --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Newcomers:
    """The programs of a mix, at an engine with room for all of them."""

    name: str

    def load(self, seed: int) -> Load:
        """Make the programs and the engine."""
        mix = MIXES[self.name]
        programs = mix.programs(self.name, seed)
        least = LONGEST // BLOCK_SIZE + 2
        small = VirtualOptions(mix.slots, least, max_model_len=LONGEST)
        return Load(programs, with_room_for_all(programs, small), StepTimeModel())


def _cells(options: dict[str, Any]) -> list[Cell[Newcomers, str]]:
    names = check_names("mix", options["workload"], list(MIXES))
    policies = check_policies(options["policy"])
    seeds = range(options["seed"], options["seed"] + options["seeds"])
    return cells_of([Newcomers(name) for name in MIXES if name in names], policies, seeds)


def check_policies(names: Sequence[str]) -> list[str]:
    """Return stock and the policies to compare with it; without names, the default policies.

    Raises `ConfigError` for stock itself, and for a contender that is more than a policy.
    """
    policies = contenders(names or [DEFAULT])
    for item in policies:
        if item.stock or item.scheduler or item.memory > 1 or item.hints is not None:
            raise ConfigError(
                f"--policy {item.name!r}: every ratio is to {STOCK}; name a policy of agentrt's "
                f"scheduler, such as {DEFAULT}, atlas or adaptive+cost+memory"
            )
    return [STOCK, *(item.name for item in policies)]


def figures(load: Load, name: str) -> Figures:
    """Return the completion times of a first run, and if the policy learns, the mean of a second
    run.
    """
    policy = contender(name)

    def serve(learned: Any = None) -> tuple[Sequence[Outcome], Any]:
        engine = Virtual(policy.scheduling, load.options, load.times)
        scheduler = engine.lanes[0].engine.scheduler
        if learned is not None:
            scheduler.control("know", learned)
        ran = drive(engine, load.programs)
        return ran.outcomes, None if policy.stock else scheduler.history.values()

    first, learned = serve()
    if learned is None:
        return times(first)
    return {**times(first), "known": times(serve(learned)[0])["mean"]}


def times(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the completion times of a run, by the names of `FIGURES`."""
    seconds = sorted(outcome.latency_s for outcome in outcomes)
    return {"mean": fmean(seconds), "p99": quantile(seconds, 0.99), "longest": seconds[-1]}


def ratios(mine: Figures, base: Figures) -> Ratios:
    """Return the ratios of completion times to those of ``base``, which has no second run."""
    over = {name: mine[name] / base[name] for name in FIGURES}
    return {**over, "known": mine["known"] / base["mean"]} if "known" in mine else over


# -- tables ------------------------------------------------------------------------------

Results = Mapping[tuple[str, str], Sequence[Ratios]]
"""The ratios of each seed, by mix and policy."""


def report(results: Results) -> str:
    """Return both tables, with a line of summary for each policy."""
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
        groups = ", ".join(f"{item.count} {item.type or item.kind}" for item in mix.groups)
        figures = [spread(seeds, figure) for figure in (*FIGURES, "known")]
        verdict = "yes" if reached(seeds, "mean", wanted) else "no"
        rows.append([name, groups, mix.slots, policy, *figures, verdict])
    return markdown([*head, f"mean at most {wanted:.2f}"], rows)


def spread(seeds: Sequence[Ratios], figure: str) -> str:
    """Return the median of a figure over the seeds, with the least and the greatest value."""
    values = [item[figure] for item in seeds if figure in item]
    return "{:.3f} ({:.3f}-{:.3f})".format(*astuple(Spread.of(values))) if values else "-"


def reached(seeds: Sequence[Ratios], figure: str, wanted: float) -> bool:
    """Return whether the median of a figure, rounded as in tables, is at most ``wanted``."""
    return round(median(item[figure] for item in seeds), 3) <= wanted


def summary(title: str, results: Results, policy: str, wanted: float) -> str:
    """Say how many mixes reach the wanted ratio, and the mean over the mixes."""
    mine = {mix: seeds for (mix, name), seeds in results.items() if name == policy}
    means = [median(item["mean"] for item in seeds) for seeds in mine.values()]
    count = sum(reached(seeds, "mean", wanted) for seeds in mine.values())
    return (
        f"{title}, {policy}: the mean completion time is {fmean(means):.3f} of stock's over "
        f"{len(mine)} mixes; at most {wanted:.2f} in {count} of them."
    )


def as_json(results: Results) -> dict[str, Any]:
    """Return all ratios of each seed as JSON values."""
    return {
        "cells": [
            {"mix": mix, "alike": MIXES[mix].alike, "policy": policy, "by_seed": list(seeds)}
            for (mix, policy), seeds in results.items()
        ]
    }
