"""``agentrt simulate sweep``: a grid of workloads, loads and policies, on all cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.simulate.options import (
    ManyCommand,
    check_output,
    check_plot,
    cores,
    engine_options,
    many,
    policy_option,
    read_hints,
    read_machine,
    read_policies,
    read_scheduler,
    seeds_option,
)
from agentrt.lab.commands.simulate.sources import (
    read_source,
    read_traces,
    scale_options,
    warn_of_sleepers,
)

if TYPE_CHECKING:
    from agentrt.lab.reports.compare import Cell, Sustained
    from agentrt.lab.runs.grid import RunSpec
    from agentrt.lab.runs.settings import Setting

_EPILOG = """\b
Examples:
  agentrt simulate sweep --workload chat react lats --load 0.8 0.9 0.95 --programs 500
  agentrt simulate sweep --load 0.8 0.9 0.95 b0.8 1.3 --policy mlfq plas atlas srpt \\
      --seeds 5 --programs 4000 --markdown table.md --plot curves.png
  agentrt simulate sweep --load b0.8 --policy plas adaptive adaptive+hints --hints 0.5
  agentrt simulate sweep --workload lats --load 0.5 0.7 0.9 1.1 --slo 2x
  agentrt simulate sweep --trace sessions.jsonl.gz --output-scale 0.2 --gap-scale 0.01
  agentrt simulate sweep --workload chat --offline --programs 1000 2000 4000
  agentrt simulate sweep --workload mixed --json - | jq '.cells[].measures.mean_s.ratio'

\b
Loads are shares of the engine's capacity: 0.9 are Poisson arrivals, b0.8 is a mean load of
0.8 in bursts between 1.9 and 0.1 (1000 programs, or all, for a burst and its lull), 1.3 is
overload for the length of the run. A trace's programs come in an order of each seed's own,
and again once all have come; its gaps are kept. NAME+hints is the policy NAME, told a guess
of each program's size. Ratios are medians over the seeds, with the least and the greatest.
Ctrl-C keeps what is done.
Exit codes: 0; 2 bad usage; 130 Ctrl-C.
"""
_POLICIES = ("mlfq", "plas", "atlas", "adaptive")
_LOADS = ("0.8", "0.9", "0.95", "b0.8", "1.3")


@click.command(cls=ManyCommand, epilog=_EPILOG)
@many("--workload", metavar="NAME…", help="chat, react, lats, mixed, graphs8.  [default: mixed]")
@many("--trace", metavar="FILE…", help="Programs drawn from recorded traces.")
@scale_options
@many("--load", metavar="X…", help=f"Loads, bursts as b0.8.  [default: {','.join(_LOADS)}]")
@policy_option(",".join(_POLICIES))
@click.option("--offline", is_flag=True, help="All programs at once: compare makespans.")
@many(
    "--programs",
    metavar="N…",
    help="How many; several with --offline.  [default: 1000; all of a trace]",
)
@seeds_option
@engine_options
@click.option(
    "--slo",
    default="2x",
    show_default=True,
    metavar="S|Xx",
    help="Throughput at equal latency: the limit on token latency, in seconds, or (2x) in "
    "multiples of the baseline's at the lowest load.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE|-")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), metavar="FILE|-")
@click.option("--markdown", "md_path", type=click.Path(path_type=Path), metavar="FILE|-")
@click.option(
    "--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw latency against load."
)
def sweep(**options: Any) -> None:
    """Simulate every policy under every load on every workload.

    Tables go to stdout, unless a - says what else goes there.
    """
    from agentrt.lab.commands.simulate.progress import do_runs
    from agentrt.lab.reports.compare import cells, sustained
    from agentrt.lab.runs import contenders
    from agentrt.lab.runs.grid import grid

    _check_outputs(options)
    baseline = options["baseline"]
    policies = read_policies(options["policy"] or _POLICIES, baseline)
    limit, relative = read_slo(options["slo"])
    settings = _settings(options)
    machine = read_machine(options)
    scheduler = read_scheduler(options)
    hints = read_hints(options["hints"], policies)
    seeds = list(range(options["seeds"]))
    specs = grid(settings, contenders.policies(policies, scheduler, hints), seeds, machine)
    warn_of_sleepers(settings, machine)
    results, stop = do_runs(specs, options["jobs"] or cores())
    found = cells(results, settings, policies, baseline)
    if found:
        _write(found, sustained(found, baseline, limit, relative=relative), specs, seeds, options)
    if stop:
        raise stop


def read_slo(text: str) -> tuple[float, bool]:
    """A limit on token latency: ``0.2`` (seconds) or ``2x`` (and then True)."""
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"--slo {text!r}: give seconds per token such as 0.2, or a factor as 2x")
    return value, text.endswith("x")


def _check_outputs(options: dict[str, Any]) -> None:
    names = {"json_path": "--json", "csv_path": "--csv", "md_path": "--markdown"}
    for name, option in names.items():
        check_output(option, options[name])
    if sum(str(options[name]) == "-" for name in names) > 1:
        raise ConfigError("only one of --json, --csv and --markdown can go to stdout (-)")
    check_plot(options["plot"])


def _settings(options: dict[str, Any]) -> list[Setting]:
    from agentrt.lab.runs.pressure import Pressure
    from agentrt.lab.runs.settings import Setting

    traces = read_traces([Path(name) for name in options["trace"]], options)
    names = options["workload"] or (() if traces else ("mixed",))
    sources = [*(read_source(name, options) for name in names), *traces]
    counts: list[int | None] = [_count(text) for text in options["programs"]]
    counts = counts or [None]
    if options["offline"]:
        if options["load"]:
            raise ConfigError("--offline has all programs arrive at once; leave --load out")
        return [Setting(s, Pressure("at-once"), n) for s in sources for n in counts]
    if len(counts) > 1:
        raise ConfigError("--programs: several numbers are for --offline; give one")
    loads = [Pressure.parse(text) for text in options["load"] or _LOADS]
    return [Setting(source, load, counts[0]) for source in sources for load in loads]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--programs {text!r}: give a number from 1 up")
    return int(text)


def _write(
    found: Sequence[Cell],
    answers: Sequence[Sustained],
    specs: Sequence[RunSpec],
    seeds: list[int],
    options: dict[str, Any],
) -> None:
    from agentrt.lab.commands.simulate import tables
    from agentrt.lab.reports.cells import as_csv, as_dicts

    common = tables.conditions(specs, seeds, options["baseline"])
    text = _as_markdown(found, answers, common)
    told = {
        "settings": common,
        "complete": sum(len(cell.seeds) for cell in found) == len(specs),
        "cells": as_dicts(found),
        "sustained": tables.sustained_dicts(answers),
    }
    _put(options["json_path"], f"{json.dumps(told)}\n")
    _put(options["csv_path"], as_csv(found))
    _put(options["md_path"], f"{text}\n")
    _draw(found, options["plot"])
    if not any(str(options[name]) == "-" for name in ("json_path", "csv_path", "md_path")):
        click.echo(text)


def _as_markdown(
    found: Sequence[Cell], answers: Sequence[Sustained], common: dict[str, Any]
) -> str:
    from agentrt.lab.commands.simulate import tables

    baseline = common["baseline"]
    counts = sorted({cell.setting.count for cell in found})
    head = f"{', '.join(map(str, counts))} programs. {tables.in_words(common)}"
    parts = [head, tables.sweep_table(found, baseline)]
    if answers:
        parts += [
            "Throughput at equal latency: the highest load with a token latency under a limit.",
            tables.sustained_table(answers, baseline),
        ]
    return "\n\n".join(parts)


def _put(path: Path | None, text: str) -> None:
    if path is None:
        return
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(path)!r}: {(error.strerror or str(error)).lower()}") from error


def _draw(found: Sequence[Cell], path: Path | None) -> None:
    if path is None:
        return
    from agentrt.lab.reports.plots import draw_curves

    offline = found[0].setting.pressure.kind == "at-once"
    draw_curves(found, path, ("makespan_s",) if offline else ("mean_s", "p99_s"))
