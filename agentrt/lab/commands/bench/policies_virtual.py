"""``agentrt bench --virtual``: vLLM's scheduling in virtual time, on all cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.commands.bench.asked import Asked, Measured
from agentrt.lab.commands.outputs import silence_vllm
from agentrt.lab.commands.simulate.progress import do_runs
from agentrt.lab.reports.policies import about_engine, about_workload, vllm_version
from agentrt.lab.runs.grid import grid
from agentrt.lab.runs.machine import Machine
from agentrt.lab.runs.settings import Setting

_SLOTS = 16
_FLAGS = {
    "--max-num-seqs": "batch",
    "--num-gpu-blocks-override": "kv_blocks",
    "--max-num-batched-tokens": "max_num_batched_tokens",
}
"""Those of vLLM's flags that mean something without an engine."""


def measure(asked: Asked) -> Measured:
    """All runs, in as many processes as there are cores. A signal keeps what is done."""
    silence_vllm()
    options = asked.options
    sizes = {"batch": options["max_num_seqs"] or _SLOTS, **_sizes(asked.flags)}
    machine = Machine(depth="virtual", step_model=options["step_model"], **sizes)
    settings = [Setting(asked.source, pressure, asked.programs) for pressure in asked.pressures]
    specs = grid(settings, asked.everyone, asked.seeds, machine)
    for setting in settings:
        setting.arrivals(machine, asked.seeds[0])  # what cannot be is refused before all else
    results, stop = do_runs(specs, options["jobs"])
    return _about(machine), _head(asked, machine), results, stop


def _sizes(flags: Sequence[str]) -> dict[str, Any]:
    """The virtual engine's sizes out of vLLM's flags. Raises `ConfigError` for other flags."""
    words = [word for flag in flags for word in flag.split("=", 1)]
    found: dict[str, Any] = {}
    for name, value in zip(words[::2], [*words[1::2], ""], strict=False):
        if name not in _FLAGS:
            raise ConfigError(
                f"{name!r}: --virtual has no engine; of vLLM's flags it takes {', '.join(_FLAGS)}"
            )
        if not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"{name} {value!r}: give a number from 1 up")
        found[_FLAGS[name]] = int(value)
    return found


def _about(machine: Machine) -> dict[str, Any]:
    return {"time": "virtual", "vllm": vllm_version(), "engine": machine.to_dict()}


def _head(asked: Asked, machine: Machine) -> str:
    workload = about_workload(asked.source, asked.programs, asked.seeds)
    return f"{about_engine(machine)}\n{workload}"
