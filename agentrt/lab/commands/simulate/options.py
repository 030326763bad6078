"""Options that the simulations share, and what they ask for, checked up front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from agentrt.cli.numbers import NumberRange
from agentrt.cli.options import together
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import Option, count_option, file, many, silence_vllm
from agentrt.lab.runs.contenders import (
    BASELINE,
    DEFAULT,
    DEFAULT_HINTS,
    HINTED,
    check_in_steps,
    contenders,
)
from agentrt.lab.runs.grid import RunSpec, Setting, Source, grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import Pressure, share_in_time
from agentrt.lab.workloads.replay import Scales
from agentrt.lab.workloads.traces import KNOWN
from agentrt.scheduler import SchedulerConfig


def _scale(name: str, about: str, *, zero: bool = False) -> Option:
    kind = NumberRange(min=0, min_open=not zero)
    return click.option(name, type=kind, default=1.0, metavar="X", help=f"Multiplies the {about}.")


_POLICIES = ("mlfq", "plas", "atlas", DEFAULT)
policy_option: Option = many(
    "--policy",
    metavar="NAME…",
    help="Policies to compare: default is what agentrt run uses, adaptive is its order of calls "
    f"without its retention and admission.  [default: {','.join(_POLICIES)}]",
)
seeds_option: Option = count_option("--seeds", default=3, about="How many seeds, from 0 up.")
jobs_option: Option = count_option(
    "--jobs", metavar="J", about="Processes.  [default: one per core]"
)
ABOUT_TRACE = f"Recorded programs: {', '.join(KNOWN)}."
scale_options: Option = together(
    _scale("--context-scale", "tokens of prompts"),
    _scale("--output-scale", "tokens of outputs"),
    _scale("--gap-scale", "seconds between calls", zero=True),
)
_MACHINE: Option = together(
    count_option("--batch", default=32, metavar="B", about="How many calls run at a time."),
    click.option(
        "--depth",
        type=click.Choice(("steps", "virtual")),
        default="steps",
        show_default=True,
        help="steps: batch slots alone, all steps alike. virtual: vLLM's own scheduler, with "
        "memory, prefix cache and prefill; it needs vLLM and takes longer.",
    ),
    click.option(
        "--step-ms",
        type=NumberRange(min=0, min_open=True),
        metavar="MS",
        help="steps: milliseconds per step, which gives each running call one token.  "
        "[default: 25]",
    ),
    count_option(
        "--kv-blocks",
        about="virtual: the KV cache, in blocks of 16 tokens.  [default: 8192]",
        least=2,
    ),
    count_option(
        "--max-num-batched-tokens",
        about="virtual: tokens that a step computes at most.  [default: 2048]",
    ),
    file(
        "--step-model",
        about="virtual: how long steps take, from agentrt calibrate.  [default: made up]",
    ),
)
machine_options: Option = together(_MACHINE, jobs_option)
"""The simulated engine alone."""
engine_options: Option = together(
    count_option(
        "--replicas",
        default=1,
        about="Simulate N engines; a load is the share of what all of them can do.",
    ),
    click.option(
        "--router",
        metavar="NAME",
        help="What spreads the calls over replicas: cost, or another of agentrt serve --router.",
    ),
    _MACHINE,
    click.option(
        "--hints",
        type=NumberRange(0, 1),
        metavar="X",
        help="How well the sizes that NAME+hints is told correlate with the true ones.  "
        "[default: 0.5]",
    ),
    click.option("--beta", type=float, metavar="X", help="Anti-starvation; inf: never promote."),
    click.option(
        "--lane",
        type=float,
        metavar="X",
        help="The share of the batch that adaptive keeps for the oldest programs; 0: none.  "
        "[default: 0.05]",
    ),
    jobs_option,
)
"""The simulated engine or engines, and the scheduler."""


# -- what they ask for -----------------------------------------------------------------


def read_grid(
    options: Mapping[str, Any], settings: Sequence[Setting], seeds: Sequence[int]
) -> list[RunSpec]:
    """The runs that are asked for, each policy after `BASELINE`. Raises `ConfigError`."""
    given = {name: options[name] for name in ("beta", "lane") if options[name] is not None}
    names, hints = options["policy"] or _POLICIES, options["hints"]
    if hints is not None and not any(HINTED in name.split("+") for name in names):
        raise ConfigError(
            f"--hints {hints:g}: no policy gets them; name one with +{HINTED}, such as "
            f"--policy {names[-1]} {names[-1]}+{HINTED}"
        )
    how_good = DEFAULT_HINTS if hints is None else hints
    everyone = contenders([BASELINE, *names], SchedulerConfig(**given), how_good)
    machine = read_machine(options)
    if machine.depth == "steps":
        check_in_steps(everyone)
    warn_of_sleepers(settings, machine)
    return grid(settings, everyone, seeds, machine)


_OF_DEPTH = {
    "steps": ("step_ms",),
    "virtual": ("kv_blocks", "max_num_batched_tokens", "step_model"),
}


def read_machine(options: Mapping[str, Any]) -> Machine:
    """The simulated engine. Raises `ConfigError` for options of another depth than its own."""
    depth = options["depth"]
    for other, names in _OF_DEPTH.items():
        for name in names:
            if other != depth and options[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} is for --depth {other}; leave it out")
    if depth == "virtual":
        silence_vllm()
    given = {name: options[name] for name in _OF_DEPTH[depth] if options[name] is not None}
    if (step_ms := given.pop("step_ms", None)) is not None:
        if not math.isfinite(step_ms):
            raise ConfigError(f"--step-ms {step_ms}: give a number of milliseconds")
        given["step_s"] = step_ms / 1000
    return Machine(options["batch"], depth=depth, **given, **_fleet(options))


def _fleet(options: Mapping[str, Any]) -> dict[str, Any]:
    """How many engines and which router, for commands that have one of each."""
    replicas, router = options.get("replicas", 1), options.get("router")
    if not isinstance(replicas, int):
        return {}
    if router is not None and replicas == 1:
        raise ConfigError("--router chooses among replicas: give --replicas N, or leave it out")
    return {"replicas": replicas} | ({} if router is None else {"router": router})


# -- where programs come from ----------------------------------------------------------


def read_sources(names: Sequence[str], options: Mapping[str, Any]) -> list[Source]:
    """Generators and traces by their names, to the scales that were given.

    Traces are read at once and reported on stderr. Raises `ConfigError`.
    """
    scales = Scales(options["context_scale"], options["output_scale"], options["gap_scale"])
    sources = [Source.named(name, scales=scales) for name in names]
    stems = [source.name for source in sources]
    for source in sources:
        if source.path is not None:
            click.echo(source.trace().report(), err=True)
    return [
        source if stems.count(source.name) == 1 else replace(source, name=str(source.path))
        for source in sources
    ]


def read_loads(texts: Sequence[str]) -> list[Pressure]:
    """Loads, and mean loads in bursts. Raises `ConfigError` for a bad one."""
    return [Pressure.parse(text) for text in texts]


def warn_of_sleepers(settings: Sequence[Setting], machine: Machine) -> None:
    """Say on stderr of which traces the engine sees less than the load that was asked for."""
    for setting in settings:
        if setting.source.path is None or not setting.pressure.paced:
            continue
        share = share_in_time(setting.arrivals(machine, 0), machine.token_s())
        if share < _FULL:
            click.echo(_SLEEPERS.format(setting.source.name, setting.label, share), err=True)


_FULL = 0.75
"""Even without gaps a part of the work is left when the last program arrives."""

_SLEEPERS = (
    "{} at {}: programs sleep between their calls, so that {:.0%} of the work comes before the "
    "last program arrives, and about so much of the load; more --programs or a smaller "
    "--gap-scale get nearer to it"
)
