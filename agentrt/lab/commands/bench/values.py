"""Options that benchmarks share, what lists of numbers mean, and where progress goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

model_option = click.option("--model", metavar="MODEL", help="A folder or a Hugging Face name.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the medians as one JSON line."
)
seed_option = click.option("--seed", type=int, default=0, show_default=True, metavar="N")


def count_option(*names: str, default: int, least: int = 1) -> Callable[[F], F]:
    """An option for a whole number from ``least`` up."""
    kind = click.IntRange(min=least)
    return click.option(*names, type=kind, default=default, show_default=True, metavar="N")


def counts(option: str, texts: Sequence[str]) -> list[int]:
    """The numbers that the values of an option name, in rising order."""
    return sorted({number for text in texts for number in numbers(text, option)})


def numbers(text: str, option: str = "") -> tuple[int, ...]:
    """``4,64`` as numbers. Raises `BadParameter` for anything else."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        what = f"{option} {text!r}".strip()
        raise click.BadParameter(f"{what} is no list of positive numbers such as 4,64")
    return found


def note(message: str) -> None:
    """Say on stderr what runs now."""
    click.echo(message, err=True)
