"""``benchmarks room`` and ``first-runs``: completion times with room for all contexts.

Each policy serves the same programs as stock vLLM in virtual time, with vLLM's real scheduler and
KV-cache manager, whose cache has room for everything. ``room`` runs all workloads of ``benchmarks
memory`` except ``recorded``. Below a load of 1, the engine keeps up with the programs, and no
policy can gain anything; above a load of 1, programs queue. ``first-runs`` runs mixes of programs
of types that the engine has not seen before; then the engine serves the same programs again, with
the history of the first run and an empty cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import Any

import click

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    policy_option,
    programs_option,
    silence_vllm,
    text_option,
)
from agentrt.lab.engine.headless import BLOCK_SIZE
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.lab.engine.virtual import VirtualOptions
from agentrt.lab.outcome import Outcome, quantile
from agentrt.lab.runs.contenders import DEFAULT, STOCK, TRUE_SIZES, contender, contenders
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.cells import Cell, Load, cells_of, check_names, measured, seeds_of, study_options
from benchmarks.harness import Column, Figures, show, spread_text, table
from benchmarks.memory.cells import ALL_WORKS, RECORDED, Memory, Setup, with_room_for_all
from benchmarks.mixes import ALIKE, LONGEST, MIXES, UNLIKE
from benchmarks.options import (
    load_option,
    number,
    workload_option,
)

WANTED_UNLIKE, WANTED_ALIKE = 0.90, 1.01
"""The highest acceptable mean completion time of a first run, as a multiple of stock vLLM's."""
EQUAL = 1.01
"""The highest acceptable ratio of the mean and the P99 to stock's values, at loads at which no
policy can gain anything.
"""
WORKS = tuple(name for name in ALL_WORKS if name != RECORDED)
LOADS = ("0.6", "2")
SLOTS = 16
FIGURES = {"mean": "mean", "p99": "P99", "longest": "longest"}
Ratios = Mapping[str, float]
"""Ratios of a policy's completion times to stock's, by the names of `FIGURES`. If the policy
learns, ``known`` is the mean of its second run divided by stock's mean.
"""
Results = Mapping[tuple[Any, ...], Sequence[Ratios]]
"""The ratios of each seed, by mix and policy; for the command ``room``, by load, workload and
policy.
"""
_POLICIES = policy_option(f"Policies to compare with {STOCK}.  [default: {DEFAULT}]")


@click.command("first-runs", cls=ManyCommand)
@workload_option(f"Mixes of programs.  [default: all: {', '.join(MIXES)}]", former=["--mixes"])
@_POLICIES
@study_options(5)
def first_runs(**options: Any) -> None:
    """Compare the completion times of programs with stock vLLM's, in an engine that has seen no
    such programs before.

    In ten mixes the programs differ; in the other ten mixes the programs are alike. Each figure is
    the median ratio to stock over the seeds, with the least and the greatest; less is better. "once
    known" is the ratio to stock of the mean completion time in a second run of the same programs,
    after the policy has learned them in the first run.
    """
    names = check_names("mix", options["workload"], list(MIXES))
    works = [Newcomers(name) for name in MIXES if name in names]
    cells = cells_of(works, check_policies(options["policy"]), seeds_of(options))

    def rows(results: Mapping[tuple[Newcomers, str], Sequence[Ratios]]) -> Results:
        return {(mix.name, policy): seeds for (mix, policy), seeds in results.items()}

    _compare(cells, first_and_known, options, rows, report, mixes_as_json)


@click.command(cls=ManyCommand)
@workload_option(f"Workloads to run.  [default: all: {', '.join(WORKS)}]")
@load_option(f"Arrival rates, as shares of the engine's capacity.  [default: {','.join(LOADS)}]")
@_POLICIES
@text_option(
    "--lane",
    "X",
    "Share of the batch that adaptive reserves for the oldest programs; 0: none.  [default: "
    f"{SchedulerConfig().lane:g}]",
    type=float,
)
@programs_option("Number of programs of each workload.")
@study_options(5)
def room(**options: Any) -> None:
    """Compare mean and P99 of completion times with stock vLLM's, with a KV cache that has room for
    everything.

    Each figure is the median ratio to stock over the seeds, with the least and the greatest; less
    is better. The ratios of mean and P99 should be at most 1.01 at loads below 1 (the engine's
    capacity), and at most 1.00 at loads of 1 and more.
    """
    names = check_names("workload", options["workload"], WORKS)
    such = "a positive number such as 0.6"
    loads = [number("--load", text, such) for text in options["load"] or LOADS]
    # In this order, an early end leaves finished workloads.
    works = [Roomy(name, load, options["programs"]) for name, load in product(names, loads)]
    cells = cells_of(works, check_policies(options["policy"]), seeds_of(options))
    settings = SchedulerConfig()
    if options["lane"] is not None:
        settings = replace(settings, lane=options["lane"])
    figures = partial(first_run, settings=settings)
    _compare(cells, figures, options, by_load, room_table, loads_as_json)


def _compare(
    cells: Sequence[Cell[Any, str]],
    figures: Callable[[Any, str], Figures],
    options: Mapping[str, Any],
    rows: Callable[[Any], Results],
    text: Callable[[Results], str],
    values: Callable[[Results], list[dict[str, Any]]],
) -> None:
    """Run the cells, and print the ratios to stock's figures as text and as JSON values."""
    silence_vllm()
    with measured(cells, figures, options["jobs"]) as runs:
        results = rows(runs.over(STOCK, ratios))
        if results:
            show(text(results), {"cells": values(results)}, as_json=options["as_json"])


# -- workloads ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Newcomers:
    """A mix of programs, on an engine with room for all programs."""

    name: str

    def load(self, seed: int) -> Load:
        """Make the programs and the engine."""
        mix = MIXES[self.name]
        programs = mix.programs(self.name, seed)
        least = LONGEST // BLOCK_SIZE + 2
        small = VirtualOptions(mix.slots, least, max_model_len=LONGEST)
        return Load(programs, with_room_for_all(programs, small), StepTimeModel())


@dataclass(frozen=True, slots=True)
class Roomy:
    """A workload at a load, on an engine with room for all of its programs."""

    name: str
    at: float
    count: int | None

    def load(self, seed: int) -> Load:
        """Make the programs and the engine."""
        memory = Memory(slots=SLOTS, count=self.count, load=self.at)
        work = ALL_WORKS[self.name]
        setup = Setup(self.name, 1.0, work.tool_s)
        programs = memory.programs(setup, seed)
        longest = memory.longest(setup)
        small = VirtualOptions(SLOTS, longest // BLOCK_SIZE + 2, max_model_len=longest)
        return Load(programs, with_room_for_all(programs, small), work.step_time)


def check_policies(names: Sequence[str]) -> list[str]:
    """Return stock and the policies to compare with it; without names, the default policies.

    Raises `ConfigError` for stock itself, and for a contender that is not just a policy of
    agentrt's scheduler.
    """
    policies = contenders(names or [DEFAULT])
    for item in policies:
        if item.stock or {*item.parts} - {TRUE_SIZES}:
            raise ConfigError(
                f"--policy {item.name!r}: every ratio is to {STOCK}; name a policy of agentrt's "
                f"scheduler, such as {DEFAULT}, atlas or adaptive+cost+memory"
            )
    return [STOCK, *(item.name for item in policies)]


# -- runs --------------------------------------------------------------------------------


def first_run(load: Load, name: str, settings: SchedulerConfig) -> Figures:
    """Return the completion times of a run. ``settings`` has the settings that the policy's name
    does not determine.
    """
    return times(load.virtual(contender(name, settings)).outcomes)


def first_and_known(load: Load, name: str) -> Figures:
    """Return the completion times of a first run. If the policy learns, also return the mean of a
    second run.
    """
    policy = contender(name)
    first, learned = load.serve(policy)
    if learned is None:
        return times(first.outcomes)
    second, _ = load.serve(policy, learned)
    return {**times(first.outcomes), "known": times(second.outcomes)["mean"]}


def times(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the mean, the P99 and the longest of the completion times of a run's programs, in
    seconds, by the names of `FIGURES`.
    """
    seconds = sorted(outcome.latency_s for outcome in outcomes)
    return {"mean": fmean(seconds), "p99": quantile(seconds, 0.99), "longest": seconds[-1]}


def ratios(mine: Figures, base: Figures) -> Ratios:
    """Return the completion times divided by those of ``base``. If there was a second run, its mean
    is divided by the mean of the only run of ``base``.
    """
    over = {name: mine[name] / base[name] for name in FIGURES}
    return {**over, "known": mine["known"] / base["mean"]} if "known" in mine else over


# -- tables ------------------------------------------------------------------------------

Row = tuple[tuple[Any, ...], Sequence[Ratios]]


def spread(seeds: Sequence[Ratios], figure: str) -> str:
    """Return the median of a figure over the seeds, with the least and the greatest value."""
    values = [item[figure] for item in seeds if figure in item]
    return spread_text(values, ".3f") if values else "-"


def reached(seeds: Sequence[Ratios], figure: str, wanted: float) -> bool:
    """Return whether the median of a figure, rounded as in tables, is at most ``wanted``."""
    return round(median(item[figure] for item in seeds), 3) <= wanted


def _columns(names: Mapping[str, str]) -> list[Column]:
    """Return a column for each figure, with its spread. ``names`` maps figures to heads."""

    def column(figure: str) -> Callable[[Row], str]:
        return lambda row: spread(row[1], figure)

    return [Column(head, column(figure)) for figure, head in names.items()]


def _key(place: int) -> Callable[[Row], object]:
    return lambda row: row[0][place]


def report(results: Results) -> str:
    """Return the tables of ``first-runs``, with a line of summary for each policy."""
    parts = []
    for title, mixes, wanted in (
        ("Unlike programs", UNLIKE, WANTED_UNLIKE),
        ("Programs that are alike", ALIKE, WANTED_ALIKE),
    ):
        shown = {key: seeds for key, seeds in results.items() if key[0] in mixes}
        if shown:
            parts += [f"**{title}** (completion time over stock's)", _mixes_table(shown, wanted)]
            policies = dict.fromkeys(policy for _, policy in shown)
            parts.append("\n".join(summary(title, shown, name, wanted) for name in policies))
    return "\n\n".join(parts)


def _mixes_table(results: Results, wanted: float) -> str:
    def programs(row: Row) -> str:
        groups = MIXES[row[0][0]].groups
        return ", ".join(f"{item.count} {item.type or item.kind}" for item in groups)

    return table(
        results.items(),
        Column("mix", _key(0)),
        Column("programs", programs),
        Column("slots", lambda row: MIXES[row[0][0]].slots),
        Column("policy", _key(1)),
        *_columns({**FIGURES, "known": "once known"}),
        Column(
            f"mean at most {wanted:.2f}",
            lambda row: "yes" if reached(row[1], "mean", wanted) else "no",
        ),
    )


def summary(title: str, results: Results, policy: str, wanted: float) -> str:
    """Return a line with the number of mixes that reach the wanted ratio, and the mean ratio over
    the mixes.
    """
    mine = {mix: seeds for (mix, name), seeds in results.items() if name == policy}
    means = [median(item["mean"] for item in seeds) for seeds in mine.values()]
    count = sum(reached(seeds, "mean", wanted) for seeds in mine.values())
    return (
        f"{title}, {policy}: the mean completion time is {fmean(means):.3f} of stock's over "
        f"{len(mine)} mixes; at most {wanted:.2f} in {count} of them."
    )


def mixes_as_json(results: Results) -> list[dict[str, Any]]:
    """Return the results of ``first-runs`` as JSON values: for each mix and policy, the ratios of
    each seed.
    """
    return [
        {"mix": mix, "alike": MIXES[mix].alike, "policy": policy, "by_seed": list(seeds)}
        for (mix, policy), seeds in results.items()
    ]


def by_load(over: Mapping[tuple[Roomy, str], Sequence[Ratios]]) -> Results:
    """Return the ratios of each seed by load, workload and policy, in this order."""
    runs = {(work.at, work.name, policy): seeds for (work, policy), seeds in over.items()}
    return dict(sorted(runs.items(), key=lambda item: (item[0][0], WORKS.index(item[0][1]))))


def wanted_at(load: float) -> float:
    """Return the highest acceptable ratio at a load."""
    return EQUAL if load < 1 else 1.0


def both_reached(load: float, seeds: Sequence[Ratios]) -> bool:
    """Return whether the medians of the mean and of the P99 are acceptable at a load."""
    return all(reached(seeds, figure, wanted_at(load)) for figure in ("mean", "p99"))


def room_table(results: Results) -> str:
    """Return a table with a row for each load, workload and policy, and the number of acceptable
    rows.
    """
    rows = table(
        results.items(),
        Column("load", lambda row: f"{row[0][0]:g}"),
        Column("workload", _key(1)),
        Column("policy", _key(2)),
        *_columns({"mean": f"mean / {STOCK}", "p99": f"P99 / {STOCK}"}),
        Column("both at most", lambda row: f"{wanted_at(row[0][0]):.2f}"),
        Column("reached", lambda row: "yes" if both_reached(row[0][0], row[1]) else "no"),
    )
    count = sum(both_reached(key[0], seeds) for key, seeds in results.items())
    return f"{rows}\n\n{count} of {len(results)} rows are acceptable."


def loads_as_json(results: Results) -> list[dict[str, Any]]:
    """Return all ratios of each seed of ``room`` as JSON values."""
    return [
        {"load": load, "workload": work, "policy": policy, "by_seed": list(seeds)}
        for (load, work, policy), seeds in results.items()
    ]
