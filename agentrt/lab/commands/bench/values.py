"""What the benchmarks' options mean, and where their progress goes."""

from __future__ import annotations

from collections.abc import Sequence

import click


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
