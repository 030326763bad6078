"""``benchmarks policies``: the command, its tables, and its runs in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    count_option,
    file,
    flag_option,
    jobs_option,
    json_flag,
    many,
    max_num_seqs_option,
    policy_option,
    programs_option,
    seed_option,
    seeds_option,
    silence_vllm,
    step_time_option,
    text_option,
)
from agentrt.lab.commands.progress import finished
from agentrt.lab.reports.compare import as_dicts, cells
from agentrt.lab.runs.contenders import STOCK
from agentrt.lab.runs.grid import (
    Setting,
    grid,
)
from agentrt.lab.runs.machine import Machine, vllm_version
from agentrt.lab.workloads.traces import KNOWN
from benchmarks.equal_latency import (
    MEASURES,
    at_equal_latency,
    by_repeats,
    repeats_as_dicts,
    times,
)
from benchmarks.harness import FlagsCommand
from benchmarks.options import model_option, model_shape_option, positive_option
from benchmarks.plots import draw_curves
from benchmarks.policies.plan import POLICIES, Measured, Plan, read
from benchmarks.summaries import do
from benchmarks.tables import ALL, about_workload, latencies, where_it_went

EPILOG = """\b
Examples:
  python -m benchmarks policies --workload mixed --virtual --rate 0.9x,1.1x --plot curves.png
  python -m benchmarks policies --workload mixed --burst 12 --policy mlfq,atlas
  python -m benchmarks policies --workload mooncake:conversation_trace.jsonl --virtual --scale 0.25
  python -m benchmarks policies --workload bfcl --rate 0.2,0.4 --policy atlas -- --dtype float32
  python -m benchmarks policies --workload mixed --model-shape llama-8b --scale 1 --rate 0.7x,1x

\b
--virtual: vLLM's real scheduler and KV-cache manager in virtual time, without a model; the results
do not depend on the machine. Without it: real engines in real time, one after the other.
Ctrl-C keeps finished runs.
Exit codes: 0 done; 1 an engine or a process failed; 2 bad usage; 130 Ctrl-C.
"""


@click.command(cls=FlagsCommand, no_args_is_help=True, epilog=EPILOG)
@text_option(
    "--workload",
    "NAME|[FORMAT:]FILE",
    "Programs: sharegpt, bfcl, lats, mixed (thirds of these), assistant, coding, deep, graphs8, or "
    f"recorded programs: {', '.join(KNOWN)}.",
    default="mixed",
)
@many(
    "--rate",
    metavar="R,…",
    help="Rates of Poisson arrivals: programs per second, or, with an x after the number, shares "
    "of the engine's capacity.  [default: 0.7x,0.9x,1.1x,1.3x with --virtual]",
)
@count_option("--burst", "Let N programs arrive at once.  [default in real time: 9]")
@programs_option("Number of programs.  [default: 150; real time 9]")
@positive_option("--scale", "Multiplies prompts, outputs and gaps.  [default: 1; real time 0.05]")
@count_option("--calls", "Leave out the calls of a program after its first N calls.")
@policy_option(
    "Policies to compare with stock; retention and admission after a plus, as in "
    f"atlas+cost+memory.  [default: {','.join(POLICIES)}]",
    former=["--policies"],
)
@seeds_option(suffix="  [default: 3; real time 2]")
@seed_option
@text_option(
    "--tokenizer", "MODEL", "Model whose tokenizer counts recorded texts.  [default: --model]"
)
@flag_option("--virtual", "Run in virtual time, without a model.")
@step_time_option(" Only for --virtual.  [default: invented times]")
@jobs_option
@max_num_seqs_option(suffix="  [default: 16; real time 4 on a CPU, vLLM's default on a GPU]")
@model_option
@model_shape_option
@json_flag("Print all results as one JSON line, too.")
@file("--plot", about="Draw latency by rate.")
def policies(engine_flags: Sequence[str], **options: Any) -> None:
    """Compare policies with stock vLLM: latency by load.

    Every policy runs the same programs at the same times with the same engine options. Stock is
    vLLM's own scheduler. priority-service and priority-path are vLLM's priority policy, with
    priorities that a client can set. Tables go to stdout, as Markdown. Separate the values of an
    option by commas, as in --rate 0.5,0.8.
    """
    plan = read(options, engine_flags)
    if options["virtual"]:
        runs = measure_virtual(plan)
    else:
        from benchmarks.policies.real import measure

        runs = measure(plan)
    with runs as measured:
        _report(plan, measured)


def _report(plan: Plan, measured: Measured) -> None:
    settings = list(dict.fromkeys(result.spec.setting for result in measured.results))
    settings.sort(key=lambda setting: setting.pressure.value)
    names = [contender.name for contender in plan.contenders]
    series = cells(measured.results, settings, names, STOCK)
    if not series:
        return
    carried = at_equal_latency(series, STOCK, times(_LEVEL))
    parts = [measured.head, latencies(series, STOCK), where_it_went(series, STOCK)]
    parts += [_EQUAL, by_repeats(carried, STOCK)] if carried else []
    click.echo("\n\n".join(parts))
    if plan.options["as_json"]:
        values = {"cells": as_dicts(series, ALL), "equal_latency": repeats_as_dicts(carried)}
        click.echo(json.dumps({**measured.about, **values}))
    if plan.options["plot"]:
        draw_curves(series, plan.options["plot"], tuple(MEASURES))


_LEVEL = 1.5
_EQUAL = f"""Throughput at equal latency: the highest load, interpolated, at which the programs'
token latency stays below {_LEVEL:g} times stock's at the lowest load. ≥ and ≤: the measured loads
give only a bound of the ratio; ~: the ratio is unknown."""


# -- in virtual time -----------------------------------------------------------------------

_VIRTUAL_SLOTS = 16
_FLAGS = {
    "--max-num-seqs": "max_num_seqs",
    "--num-gpu-blocks-override": "kv_blocks",
    "--max-num-batched-tokens": "max_num_batched_tokens",
}
"""The flags of vLLM that also have a meaning without an engine."""


@contextmanager
def measure_virtual(plan: Plan) -> Iterator[Measured]:
    """Do all runs, by default in one process per core, and yield the finished runs, which the
    ``with`` block reports.
    """
    silence_vllm()
    options = plan.options
    sizes = {"max_num_seqs": options["max_num_seqs"] or _VIRTUAL_SLOTS, **_sizes(plan.flags)}
    machine = Machine(step_model=options["step_time"], **sizes)
    settings = [Setting(plan.source, pressure, plan.programs) for pressure in plan.pressures]
    specs = grid(settings, plan.contenders, plan.seeds, machine)
    for setting in settings:
        setting.arrivals(machine, plan.seeds[0])  # raise errors before anything runs
    about = {"time": "virtual", "vllm": vllm_version(), "engine": machine.to_dict()}
    workload = about_workload(plan.source, plan.programs, plan.seeds)
    with finished(specs, options["jobs"], do) as results:
        yield Measured(about, f"{machine.in_words()}\n{workload}", [*results.values()])


def _sizes(flags: Sequence[str]) -> dict[str, Any]:
    """Return the batch slots, KV blocks and step tokens of the virtual engine, as vLLM's ``flags``
    set them. Raises `ConfigError` for a flag that is not in `_FLAGS`, and for an invalid value.
    """
    words = [word for flag in flags for word in flag.split("=", 1)]
    sizes: dict[str, Any] = {}
    for name, value in zip(words[::2], [*words[1::2], ""], strict=False):
        if name not in _FLAGS:
            raise ConfigError(
                f"{name!r}: --virtual has no engine, so it accepts only {', '.join(_FLAGS)}"
            )
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"{name} {value!r}: give a whole number of at least 1")
        sizes[_FLAGS[name]] = int(value)
    return sizes
