"""Traces as sources of programs: their options, and what is said of them on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentrt.lab.commands.simulate.options import Decorated

if TYPE_CHECKING:
    from agentrt.lab.runs.machine import Machine
    from agentrt.lab.runs.settings import Setting, Source


def scale_options(command: Decorated) -> Decorated:
    """The scales of a trace, or of a workload's programs."""
    for option in reversed(_SCALES):
        command = option(command)
    return command


_SCALES = (
    click.option(
        "--context-scale",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        metavar="X",
        help="Multiplies the tokens of prompts.",
    ),
    click.option(
        "--output-scale",
        type=click.FloatRange(min=0, min_open=True),
        default=1.0,
        metavar="X",
        help="Multiplies the tokens of outputs.",
    ),
    click.option(
        "--gap-scale",
        type=click.FloatRange(min=0),
        default=1.0,
        metavar="X",
        help="Multiplies the seconds between calls.",
    ),
)


def read_source(name: str, options: Mapping[str, Any]) -> Source:
    """A generator's programs, to the scales that were given."""
    from agentrt.lab.runs.settings import Source

    return Source(name, **_scales(options))


def _scales(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("context_scale", "output_scale", "gap_scale")}


def read_traces(paths: Sequence[Path], options: Mapping[str, Any]) -> list[Source]:
    """The traces as sources, each read at once and reported on stderr.

    Raises `ConfigError` for one that cannot be read.
    """
    from agentrt.lab.runs.settings import Source

    scales = _scales(options)
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    sources = []
    for path, stem in zip(paths, stems, strict=True):
        source = Source(stem if stems.count(stem) == 1 else str(path), path, **scales)
        click.echo(source.trace().report(), err=True)
        sources.append(source)
    return sources


def warn_of_sleepers(settings: Sequence[Setting], machine: Machine) -> None:
    """Say on stderr of which traces the engine sees less than the load that was asked for."""
    from agentrt.lab.runs.pressure import share_in_time

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
