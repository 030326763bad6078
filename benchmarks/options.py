"""Command-line options that only benchmarks have, and the functions that read their values.

`agentrt.lab.commands.options` has the options that `agentrt` has, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrt.cli.numbers import NumberRange
from agentrt.errors import ConfigError
from agentrt.lab.commands.options import Option, count_option, json_flag, many, text_option
from benchmarks.shapes import SHAPES


def workload_option(about: str, *, former: Sequence[str] = ()) -> Option:
    """Return ``--workload``, a list of workloads whose programs run."""
    return many("--workload", metavar="NAME,…", help=about, former=former)


def load_option(about: str, *, former: Sequence[str] = ()) -> Option:
    """Return ``--load``, a list of arrival rates as shares of the engine's capacity."""
    return many("--load", metavar="X,…", help=about, former=former)


def repeat_option(
    default: int, about: str = "Number of times that each side is measured."
) -> Option:
    """Return ``--repeat``, the number of times that each compared side is measured."""
    return count_option("--repeat", about=about, default=default)


def minutes_option(default: float, about: str, least: float | None = None) -> Option:
    """Return ``--minutes``: at least ``least``, or above 0 if that is None."""
    kind = NumberRange(min=least or 0, min_open=least is None)
    return text_option("--minutes", "M", about, type=kind, default=default)


def positive_option(
    name: str, about: str, default: float | None = None, *, metavar: str = "X"
) -> Option:
    """Return an option that takes a number above 0."""
    kind = NumberRange(min=0, min_open=True)
    return text_option(name, metavar, about, type=kind, default=default)


model_option: Option = text_option("--model", "MODEL", "Model: a folder or a Hugging Face name.")
model_shape_option: Option = text_option(
    "--model-shape", "NAME", f"Model shape with made-up weights: {', '.join(SHAPES)}."
)
json_option = json_flag("Print the medians as one JSON line.")


def counts(option: str, texts: Sequence[str]) -> list[int]:
    """Return the values of an option as numbers. Raises `ConfigError` for a value that is not a
    whole number of at least 1.
    """
    for text in texts:
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"{option} {text!r}: give a whole number of at least 1")
    return [int(text) for text in texts]


def number(
    option: str, text: str, what: str, least: float | None = None, *, unit: str = ""
) -> float:
    """Return the value of an option, without the ``unit`` at its end, as a number: at least
    ``least``, or above 0 if that is None.

    Raises `ConfigError`, which says to give ``what``, for any other text, and for infinity.
    """
    try:
        value = float(text.removesuffix(unit))
    except ValueError:
        value = math.nan
    if not (value > 0 if least is None else value >= least) or math.isinf(value):
        raise ConfigError(f"{option} {text!r}: give {what}")
    return value
