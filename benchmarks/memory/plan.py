"""The plan of ``benchmarks memory``: the cells, the contenders, the caps and the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from agentrt.errors import ConfigError
from agentrt.lab.commands.options import note
from agentrt.lab.runs.contenders import (
    DEFAULT,
    STOCK,
    Contender,
    check_on_engines,
    check_parts,
    contender,
    contenders,
)
from agentrt.lab.workloads.traces import named
from benchmarks.memory.cells import ALL_WORKS, RECORDED, WORKS, Lineup, Setup
from benchmarks.options import number
from benchmarks.rivals import CONTINUUM, THUNDER
from benchmarks.rivals.contenders import ALL_RUN

CAPS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
QUICK_CAPS = (0.75, 1.5, 3.0)
"""The caps to try, in multiples of the number of programs that fit into memory at a time."""
CONTENDERS = (
    STOCK,
    DEFAULT,
    THUNDER,
    CONTINUUM,
    "atlas",
    "adaptive",
    "fcfs+cost",
    "adaptive+cost",
    "fcfs+memory",
    "adaptive+memory",
)
FIRST_HELD_OUT = 5000
"""The first of the seeds on which no constant of the scheduler is tuned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells, the contenders of each cell, the caps to try, and the seeds."""

    cells: Sequence[Setup]
    contenders: Sequence[Contender]
    caps: Sequence[float]
    seeds: Sequence[int]

    @property
    def lineup(self) -> Lineup:
        """The contenders and the caps of each cell."""
        return Lineup(tuple(each.name for each in self.contenders), tuple(self.caps))


def plan(options: dict[str, Any]) -> Plan:
    """Return the plan for the options. If one of the workloads is a file, it is
    replaced by the workload `RECORDED`, and the file becomes the trace of this workload.

    Raises `ConfigError` for invalid options, before anything runs.
    """
    files = [name for name in options["workload"] if named(name, ALL_WORKS)]
    if len({options["trace"], *files} - {None}) > 1:
        raise ConfigError("--workload and --trace name several files; name only one file")
    options["trace"] = next(iter(files), options["trace"])
    options["workload"] = [RECORDED if name in files else name for name in options["workload"]]
    shares = _numbers(options, "memory") or [0.25]
    tools = _numbers(options, "tools", least=0.0)
    cells = [
        Setup(work, share, tool_s)
        for work, share in product(_works(options), shares)
        for tool_s in tools or [ALL_WORKS[work].tool_s]
    ]
    held_out, quick = options["held_out"], options["quick"]
    usual = () if held_out else QUICK_CAPS if quick else CAPS
    caps = _numbers(options, "caps", least=0.0) or usual
    first = options["seed"]
    if first is None:
        first = FIRST_HELD_OUT if held_out else 0
    seeds = range(first, first + (options["seeds"] or (1 if quick else 5)))
    return Plan(
        list(dict.fromkeys(cells)), _contenders(options), [cap for cap in caps if cap], seeds
    )


def _works(options: dict[str, Any]) -> list[str]:
    traced = options["trace"] is not None
    for name in options["workload"]:
        if name not in ALL_WORKS:
            raise ConfigError(f"unknown workload {name!r}; available: {', '.join(ALL_WORKS)}")
        if name == RECORDED and not traced:
            raise ConfigError(f"--workload {RECORDED} needs a trace; add --trace FILE")
    if options["workload"]:
        return list(options["workload"])
    usual = list(ALL_WORKS if options["held_out"] else WORKS)
    if options["held_out"] and not traced:
        note(f"{RECORDED!r} is left out: it needs --trace FILE")
    return [*(name for name in usual if name != RECORDED), *([RECORDED] if traced else [])]


def _contenders(options: dict[str, Any]) -> list[Contender]:
    usual = (DEFAULT,) if options["held_out"] else CONTENDERS
    able = [name for name in usual if contender(name).on_engines or not options["real"]]
    compared = contenders([STOCK, *(options["policy"] or able)])
    check_parts(compared, ALL_RUN)
    if options["real"]:
        check_on_engines(compared)
    return compared


def _numbers(options: dict[str, Any], name: str, least: float = 1e-3) -> list[float]:
    such = f"numbers of at least {least:g}, such as 0.25,1"
    return [number(f"--{name}", text, such, least) for text in options[name]]
