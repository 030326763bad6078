"""Every option that takes a number refuses what is none."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from agentrt.cli.app import app
from benchmarks.__main__ import benchmarks


def options(group: click.Group, name: str) -> Iterator[tuple[str, click.Option]]:
    """Every option with a number within bounds, of every command below a group."""
    context = click.Context(group)
    for key in group.list_commands(context):
        command = group.get_command(context, key)
        assert command is not None
        if isinstance(command, click.Group):
            yield from options(command, f"{name} {key}")
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.type, click.FloatRange):
                yield f"{name} {key} {option.opts[0]}", option


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(option, id=name)
        for name, option in (*options(app, "agentrt"), *options(benchmarks, "benchmarks"))
    ],
)
def test_nan_is_in_no_range(option: click.Option) -> None:
    with pytest.raises(click.BadParameter, match="nan is not in the range"):
        option.type.convert("nan", option, None)
    assert option.type.convert("1", option, None) == 1.0
