"""Options for the programs of a simulation, and for the simulated engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from agentrt.cli.options import together
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import (
    Option,
    text_option,
)
from agentrt.lab.commands.simulate import machine_options, read_fleet, read_machine
from agentrt.lab.runs.machine import Machine
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.traces import KNOWN
from benchmarks.options import positive_option, workload_option
from benchmarks.steps import SlotMachine

DEFAULT_WORKLOADS = ("mixed",)
ABOUT_WORKLOADS = (
    "chat, react, lats, mixed, assistant, coding, deep, graphs8, or recorded programs: "
    f"{', '.join(KNOWN)}."
)
workloads_option: Option = workload_option(f"{ABOUT_WORKLOADS}  [default: mixed]")
depth_options: Option = together(
    text_option(
        "--depth",
        "[steps|virtual]",
        "Engine to simulate. steps: only batch slots, with steps of equal length. virtual: "
        "vLLM's own scheduler with memory, prefix cache and prefill, as in agentrt simulate; "
        "this takes longer.",
        type=click.Choice(("steps", "virtual")),
        default="steps",
    ),
    positive_option(
        "--step-ms",
        "With --depth steps: milliseconds per step. A step gives each running call one token.  "
        "[default: 25]",
        metavar="MS",
    ),
    machine_options,
)
_OF_DEPTH = {
    "steps": ("step_ms",),
    "virtual": ("kv_blocks", "max_num_batched_tokens", "step_time"),
}


def read_depth(options: Mapping[str, Any]) -> Machine:
    """Return the engine that the options of `depth_options` describe. Raises `ConfigError` for
    options of the other depth.
    """
    depth = options["depth"]
    for other, names in _OF_DEPTH.items():
        for name in names:
            if other != depth and options[name] is not None:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} is for --depth {other}; leave {option} out")
    if depth == "virtual":
        return read_machine(options)
    step_ms = options["step_ms"] or 25.0
    return SlotMachine(options["max_num_seqs"], step_s=step_ms / 1000, **read_fleet(options))


def read_loads(texts: Sequence[str]) -> list[Pressure]:
    """Parse loads such as ``0.9``, and mean loads in bursts such as ``b0.8``. Raises
    `ConfigError` for any other text.
    """
    return [Pressure.parse(text) for text in texts]
