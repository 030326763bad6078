"""``benchmarks paper``: reproduces the paper's figures with the paper's metrics (Agentix, §6).

It reports program-level token latency by load, the load that each policy carries at equal latency,
and further measures. Runs are in virtual time with vLLM's real scheduler and KV-cache manager, or
with ``--quick`` in the step simulator, which simulates the order of calls only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from agentrt.lab.runs.contenders import BASELINE, STOCK, contenders
from agentrt.lab.runs.grid import (
    RunSpec,
    Setting,
    Source,
    grid,
)
from agentrt.lab.runs.machine import Machine, vllm_version
from agentrt.lab.workloads.arrivals import Pressure
from benchmarks.options import load_option, positive_option
from benchmarks.paper.report import Panel, as_values, draw, page
from benchmarks.policies.plan import source_of
from benchmarks.steps import SlotMachine
from benchmarks.summaries import do

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
