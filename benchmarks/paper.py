"""``benchmarks paper``: reproduces the paper's figures with the paper's metrics (Agentix, §6).

It reports program-level token latency by load, the load that each policy carries at equal latency,
and further measures. Runs are in virtual time with vLLM's real scheduler and KV-cache manager, or
with ``--quick`` in the step simulator, which simulates the order of calls only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.cli.plots import check_plot
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    ManyCommand,
    file,
    flag_option,
    jobs_option,
    json_flag,
    kv_blocks_option,
    max_num_seqs_option,
    policy_option,
    programs_option,
    seeds_option,
    silence_vllm,
    step_time_option,
    text_option,
)
from agentrt.lab.commands.progress import finished
from agentrt.lab.reports.compare import Series, about_seeds, as_dicts, cells, value
from agentrt.lab.reports.tables import Spread, digits, markdown
from agentrt.lab.runs.contenders import BASELINE, STOCK, contenders
from agentrt.lab.runs.grid import (
    RunSpec,
    Setting,
    Source,
    grid,
)
from agentrt.lab.runs.machine import Machine, vllm_version
from agentrt.lab.workloads.arrivals import Pressure
from benchmarks.equal_latency import (
    MEAN,
    Carried,
    at_equal_latency,
    exactly,
    repeats_as_dicts,
)
from benchmarks.harness import Column, table
from benchmarks.options import load_option, positive_option
from benchmarks.plots import draw_panels
from benchmarks.policies.plan import source_of
from benchmarks.steps import SlotMachine
from benchmarks.summaries import TypedResult, do
from benchmarks.tables import LOAD, MS_PER_TOKEN, POLICY, about_scales, ratios

POLICIES = (STOCK, "mlfq", "plas", "atlas", "adaptive", "srpt")
_MAIN_LOADS = ("0.8", "1", "1.3", "2", "4", "8")
_COARSE = ("1", "1.5", "3", "8")
"""Loads of the workloads other than mixed, without ``--quick``."""
_TOOL_LOADS = ("1", "2", "4", "8")
_BESIDE = ("adaptive",)
"""The policies that run with half and with twice as many programs, in addition to the baseline.
With ``--quick``, all policies do.
"""
_ELSEWHERE = ("jobs", "as_json", "plot")
"""Options that the report does not name, because they do not change the figures."""
_EPILOG = """\b
Examples:
  python -m benchmarks paper --quick --seeds 3             # minutes
  python -m benchmarks paper --plot paper.png > paper.md
  python -m benchmarks paper --workload sessions.jsonl --scale 0.2 --load 1,2,4

\b
A load is a share of the engine's capacity; above 1, the engine is overloaded during the whole run.
Ctrl-C keeps finished runs.
Exit codes: 0 done; 1 a process of the simulation died; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=ManyCommand, epilog=_EPILOG)
@text_option(
    "--workload",
    "NAME|[FORMAT:]FILE",
    "A single workload, or a trace.  [default: mixed without tools, with three numbers of "
    "programs; mixed with tools; and each class of mixed]",
)
@load_option(f"Loads of the main workload.  [default: {','.join(_MAIN_LOADS)}]", former=["--loads"])
@policy_option(f"Policies to compare.  [default: {','.join(POLICIES)}]", former=["--policies"])
@programs_option(
    "Number of programs. Without --workload, mixed also runs with half and with twice as many "
    "programs, and LATS with a quarter.",
    default=600,
)
@positive_option(
    "--scale", "Multiplies the tokens of prompts and outputs, and the times of tools.", 0.25
)
@seeds_option(default=1, first="0")
@max_num_seqs_option(default=16)
@kv_blocks_option("Size of the KV cache, in blocks of 16 tokens.", default=2048)
@step_time_option()
@jobs_option
@flag_option("--quick", "Simulate only the order of calls, in the step simulator.")
@json_flag("Print all results as one JSON line, too.")
@file("--plot", about="Draw token latency by load.")
def paper(**options: Any) -> None:
    """Compare policies with the paper's metrics: token latency by load, and load at equal latency.

    Stock is vLLM's own scheduler. srpt knows the future, and shows what is attainable.
    """
    check_plot(options["plot"])
    panels = _panels(options)
    seeds = range(options["seeds"])
    silence_vllm()
    machine = _machine(options)
    specs = dict.fromkeys(spec for panel in panels for spec in _specs(panel, machine, seeds))
    with finished(list(specs), options["jobs"], do) as results:
        measured = [panel.measured([*results.values()]) for panel in panels]
        shown = [panel for panel in measured if panel.cells]
        if shown:
            click.echo(page(shown, machine, seeds, _command()))
            if options["plot"]:
                draw(shown, options["plot"])
            if options["as_json"]:
                click.echo(json.dumps({"vllm": vllm_version(), "panels": as_values(shown)}))


def _machine(options: dict[str, Any]) -> Machine:
    batch = options["max_num_seqs"]
    blocks, times = options["kv_blocks"], options["step_time"]
    engine = Machine(batch, blocks, step_model=times)
    return SlotMachine(batch, step_s=engine.token_s()) if options["quick"] else engine


def _command() -> str:
    """Return the command line, without options that do not change the figures."""
    context = click.get_current_context()
    options = [
        f"--{name.replace('_', '-')}{_said(value)}"
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        and name not in _ELSEWHERE
    ]
    return " ".join(["python -m benchmarks paper", *options])


def _said(value: object) -> str:
    """Return an option's value as on a command line; "" for a flag."""
    if value is True:
        return ""
    return f" {','.join(value)}" if isinstance(value, tuple) else f" {value}"


def _specs(panel: Panel, machine: Machine, seeds: Sequence[int]) -> list[RunSpec]:
    for setting in panel.settings:
        setting.arrivals(machine, seeds[0])  # raise errors before anything runs
    return grid(panel.settings, contenders(panel.policies), seeds, machine)


# -- panels ----------------------------------------------------------------------------


def _panels(options: dict[str, Any]) -> list[Panel]:
    """Return the panels, each with a source, a number of programs and loads. Raises `ConfigError`
    for invalid options.
    """
    scale, count = options["scale"], options["programs"]
    loads, names = options["load"] or _MAIN_LOADS, _policies(options)
    if options["workload"]:
        source = source_of(options["workload"], scale, scale)
        return [_panel(source.name, source, loads, count, names)]
    still, tools = source_of("mixed", scale, 0.0), source_of("mixed", scale, scale)
    chat, react, lats = (source_of(name, scale, 0.0) for name in ("chat", "react", "lats"))
    # A run of 600 programs of mixed takes half a minute in virtual time, and a run of as many
    # programs of LATS takes three times as long.
    coarse = with_tools = loads
    beside = fewer = names
    half, few = max(1, count // 2), max(1, count // 4)
    if not options["quick"]:
        coarse, with_tools = _COARSE, _TOOL_LOADS
        beside = tuple(name for name in names if name in (names[0], *_BESIDE))
        fewer = tuple(name for name in names if name != "plas")
    return [
        _panel("Mixed, tools take no time", still, loads, count, names),
        _panel("Mixed, half as many programs", still, loads, half, beside),
        _panel("Mixed, tools on", tools, with_tools, count, fewer),
        _panel("BFCL (ReAct)", react, coarse, count, names),
        _panel("ShareGPT (chat)", chat, coarse, count, names),
        _panel("LATS", lats, coarse, few, fewer),
        _panel("Mixed, twice as many programs", still, loads, 2 * count, beside),
    ]


def _policies(options: dict[str, Any]) -> tuple[str, ...]:
    """Return the policies, with the baseline first. The step simulator does not have vLLM's
    scheduler, but its policy ``fcfs`` makes the same decisions as ``stock``.
    """
    names = [name for name in options["policy"] or POLICIES if name != STOCK]
    compared = contenders([BASELINE if options["quick"] else STOCK, *names])
    return tuple(contender.name for contender in compared)


def _panel(
    title: str, source: Source, loads: Sequence[str], count: int, policies: tuple[str, ...]
) -> Panel:
    pressures = sorted({Pressure.parse(load) for load in loads}, key=lambda load: load.value)
    if any(load.kind != "load" for load in pressures):
        raise ConfigError(
            f"--load {','.join(loads)}: bursts are not allowed; give shares of capacity such as 0.9"
        )
    return Panel(title, [Setting(source, load, count) for load in pressures], policies)


# -- the report ------------------------------------------------------------------------------

LEVELS = (2.0, 3.0, 5.0)
"""The latency levels, as multiples of the unloaded token latency."""
_OF_TYPES = ("token_latency_s", "mean_s", "p95_s", "p99_s")
_COMPARED = (*_OF_TYPES, "steady_per_s", "makespan_s")
_TYPED_LOADS = 2.0
"""The lowest load for which the report has rows for each type. At lower loads, few calls wait."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One workload with one number of programs: a setting for each load, and the results of these
    settings.

    ``by_type`` has the same runs by program type, if there are several types.
    """

    title: str
    settings: Sequence[Setting]
    policies: Sequence[str]
    cells: Sequence[Series] = ()
    by_type: dict[str, list[Series]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.title}, {self.settings[0].count} programs"

    @property
    def baseline(self) -> str:
        return self.policies[0]

    @property
    def unloaded_s(self) -> float:
        """The token latency of programs that have the engine to themselves, in seconds."""
        return self.cells[0].median("unloaded_token_s")

    def measured(self, results: Sequence[TypedResult]) -> Panel:
        """Return the panel with the results that belong to it."""
        own = [result for result in results if result.spec.setting in self.settings]
        types = sorted({name for result in own for name in result.by_type})
        by_type = {
            name: self._cells(
                [
                    replace(result, summary=result.by_type[name])
                    for result in own
                    if name in result.by_type
                ]
            )
            for name in types
        }
        return replace(self, cells=self._cells(own), by_type=by_type if len(types) > 1 else {})

    def _cells(self, results: Sequence[TypedResult]) -> list[Series]:
        return cells(results, self.settings, self.policies, self.baseline)

    def carried(self) -> Iterator[tuple[float, list[Carried]]]:
        """Yield the load that each policy carries at each level, if enough loads have results."""
        for times in LEVELS:
            level = exactly(times * self.unloaded_s)
            carried = at_equal_latency(self.cells, self.baseline, level, MEAN)
            if carried:
                yield times, carried


# -- the page --------------------------------------------------------------------------

_HEAD = """# The paper's figures

`python -m benchmarks paper` measures as the paper does (Agentix, §6.2). *Token latency* is a
program's latency divided by the number of tokens that it generated, averaged over programs. The
*load at equal latency* is the highest load, interpolated, at which the token latency stays below a
level: 2, 3 or 5 times the token latency of programs that are alone on the engine. Arrivals are
Poisson. A load is a share of the engine's capacity. Above 1, the engine is overloaded as long as
programs arrive, and **the number of programs determines the figures**: with more programs, the
policies' latencies at one load differ more, and their loads at equal latency differ less, because
in the long run no policy carries a load above 1. `stock` is vLLM's own scheduler, and `fcfs` makes
the same decisions; `srpt` knows the future."""
_EQUAL = """## Load at equal latency

For the first policy, a cell has its load. For each other policy, a cell has the ratio of its load
to the first policy's load; above 1 is better. ≥ and ≤: the measured loads give only a bound of the
ratio; ~: the ratio is unknown."""
_BY_LOAD = """## Latencies by load

Ratios are to the first policy with the same programs. Below 1 is better. The exception is *ended in
time*, the programs that ended by the last arrival: above 1 is better."""
_BY_TYPE = """## By type

Token latency is an average over programs, so small programs dominate it: most programs are small,
but a few large ones generate most tokens."""


def page(panels: Sequence[Panel], machine: Machine, seeds: Sequence[int], command: str) -> str:
    """Return all tables as Markdown."""
    every = (panel.settings[0].source.scales for panel in panels)
    scales = max(every, key=lambda scales: scales.gap)
    scaled = f"Scaled: {about_scales(scales)} where tools are on."
    about = f"{machine.in_words()}\n{scaled} {about_seeds(seeds)}."
    parts = [_HEAD, f"`{command}`", about, _EQUAL, _equal(panels), _BY_LOAD]
    for panel in panels:
        parts += [_title(panel), _by_load(panel)]
    parts += [_BY_TYPE]
    for panel in panels:
        if panel.by_type:
            parts += [_title(panel), _by_type(panel)]
    return "\n\n".join(parts)


def _title(panel: Panel) -> str:
    return f"**{panel.name}**; {1000 * panel.unloaded_s:.1f} ms/token alone on the engine."


def _equal(panels: Sequence[Panel]) -> str:
    names = list(dict.fromkeys(name for panel in panels for name in panel.policies))
    rows = []
    for panel in panels:
        for times, carried in panel.carried():
            loads = {each.policy: _load_of(each, panel.baseline) for each in carried}
            row = [panel.title, panel.settings[0].count, f"{times:g}x"]
            rows.append([*row, *(loads.get(name, "-") for name in names)])
    return markdown(["workload", "programs", "level", *names], rows)


def _load_of(carried: Carried, baseline: str) -> str:
    if carried.policy == baseline:
        bound = {"<": "≤", ">=": "≥"}.get(carried.bound, "")
        return f"{bound}{digits(Spread.of(carried.loads).median)}"
    return f"{carried.mark}{Spread.of(carried.ratios).median:.2f}"


def _by_load(panel: Panel) -> str:
    mean = Column("mean, s", lambda cell: value(cell, "mean_s"))
    over = ratios(*_COMPARED, over=panel.baseline)
    return table(panel.cells, LOAD, POLICY, MS_PER_TOKEN, mean, *over)


def _by_type(panel: Panel) -> str:
    typed = {
        id(cell): name
        for name, series in panel.by_type.items()
        for cell in series
        if cell.setting.pressure.value >= _TYPED_LOADS
    }
    shown = [cell for series in panel.by_type.values() for cell in series if id(cell) in typed]
    kind = Column("type", lambda cell: typed[id(cell)])
    return table(shown, LOAD, kind, POLICY, MS_PER_TOKEN, *ratios(*_OF_TYPES, over=panel.baseline))


# -- JSON and drawings -----------------------------------------------------------------


def as_values(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return all panels as JSON values."""
    return [
        {
            "title": panel.name,
            "unloaded_s_per_token": panel.unloaded_s,
            "equal_latency": [
                {"times": times, **row}
                for times, carried in panel.carried()
                for row in repeats_as_dicts(carried)
            ],
            "cells": as_dicts(panel.cells, _COMPARED),
            "by_type": {name: as_dicts(cells, _OF_TYPES) for name, cells in panel.by_type.items()},
        }
        for panel in panels
    ]


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draw token latency against load for each panel. The dotted lines are the levels."""
    levels = {panel.name: [times * panel.unloaded_s for times in LEVELS] for panel in panels}
    draw_panels({panel.name: panel.cells for panel in panels}, path, ("token_latency_s",), levels)
