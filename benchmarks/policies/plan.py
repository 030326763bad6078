"""The options of ``benchmarks policies``, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import click

import benchmarks.rivals  # noqa: F401  # makes their names known
from agentrt.cli.plots import check_plot
from agentrt.errors import ConfigError
from agentrt.lab.runs.contenders import STOCK, Contender, check_on_one_engine, contenders
from agentrt.lab.runs.grid import RunResult
from agentrt.lab.workloads.arrivals import Pressure
from agentrt.lab.workloads.replay import Scales
from benchmarks.options import number
from benchmarks.workloads.source import Cut, WorkloadSource

POLICIES = ("priority-service", "priority-path", "mlfq", "plas", "atlas", "adaptive")
PAPERS = {"sharegpt": "chat", "bfcl": "react"}
"""The paper's names for two of the generators."""
_VIRTUAL = ("step_time", "jobs")
_REAL = ("model", "model_shape")
_DEFAULT_RATES = ("0.7x", "0.9x", "1.1x", "1.3x")


@dataclass(frozen=True, slots=True)
class Plan:
    """The checked options of a comparison. ``flags`` are vLLM's flags for the engine."""

    source: WorkloadSource
    pressures: Sequence[Pressure]
    programs: int
    contenders: Sequence[Contender]
    seeds: Sequence[int]
    options: Mapping[str, Any]
    flags: Sequence[str]


class Measured(NamedTuple):
    """The finished runs, and a description of the engine as JSON values and in words."""

    about: dict[str, Any]
    head: str
    results: list[RunResult]


def read(options: Mapping[str, Any], flags: Sequence[str]) -> Plan:
    """Check the options, and return the plan of the runs. Raises `ConfigError` for invalid options,
    before anything runs.
    """
    _check_kind(options)
    check_plot(options["plot"])
    compared = contenders([STOCK, *(options["policy"] or POLICIES)])
    if not options["virtual"]:
        check_on_one_engine(compared)
    pressures = _pressures(options)
    programs = options["burst"] or options["programs"] or (150 if options["virtual"] else 9)
    repeats = options["seeds"] or (3 if options["virtual"] else 2)
    seeds = range(options["seed"], options["seed"] + repeats)
    return Plan(_source(options), pressures, programs, compared, seeds, options, tuple(flags))


def _check_kind(options: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for options without a meaning in virtual time, or in real time, and for
    options that exclude each other.
    """
    for name in _REAL if options["virtual"] else _VIRTUAL:
        if options[name] is not None:
            option = f"--{name.replace('_', '-')}"
            if options["virtual"]:
                raise ConfigError(f"{option}: --virtual has no model; leave {option} out")
            raise ConfigError(f"{option} needs --virtual; add --virtual, or leave {option} out")
    for pair in (("rate", "burst"), ("burst", "programs"), ("model", "model_shape")):
        if all(options[name] for name in pair):
            names = " and ".join(f"--{name.replace('_', '-')}" for name in pair)
            raise ConfigError(f"{names} exclude each other; leave one of them out")


def _pressures(options: Mapping[str, Any]) -> list[Pressure]:
    if options["burst"] is not None or (not options["rate"] and not options["virtual"]):
        return [Pressure("at-once")]
    pressures = [_pressure(text) for text in options["rate"] or _DEFAULT_RATES]
    if len({pressure.kind for pressure in pressures}) != 1:
        rates = ",".join(options["rate"])
        raise ConfigError(
            f"--rate {rates!r}: give all in programs per second, such as 0.5,0.8, or all as "
            "shares of the engine's capacity, such as 0.9x,1.1x"
        )
    return sorted(pressures, key=lambda pressure: pressure.value)


def _pressure(text: str) -> Pressure:
    what = "programs per second, such as 0.5, or a share of the engine's capacity, such as 0.9x"
    value = number("--rate", text, what, unit="x")
    return Pressure("load" if text.endswith("x") else "rate", value)


def _source(options: Mapping[str, Any]) -> WorkloadSource:
    scale = options["scale"] or (1.0 if options["virtual"] else 0.05)
    tokenizer = options["tokenizer"] or options["model"] or ""
    source = source_of(options["workload"], scale, scale, tokenizer)
    source = replace(source, cut=Cut(options["calls"]))
    if source.path is not None:
        click.echo(source.trace().report(), err=True)
    return source


def source_of(name: str, scale: float, gap_scale: float, tokenizer: str = "") -> WorkloadSource:
    """Return the source with this name: a file with a trace, or a generator. A generator may also
    have the name that the paper gives it (`PAPERS`).

    ``scale`` multiplies tokens, and ``gap_scale`` multiplies gaps. ``tokenizer`` is the model whose
    tokenizer counts the texts of a trace.
    """
    scales = Scales(scale, scale, gap_scale)
    return WorkloadSource.named(PAPERS.get(name, name), scales=scales, tokenizer=tokenizer)
