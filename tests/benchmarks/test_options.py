"""One name for each thing in all commands, one form of lists, and former names that still work."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from agentrt.cli.app import app
from agentrt.cli.app import call as installed
from benchmarks.__main__ import benchmarks, call

FORMER = {
    "--batch": "--max-num-seqs",
    "--blocks": "--kv-blocks",
    "--cases": "--policy",
    "--contender": "--policy",
    "--loads": "--load",
    "--mixes": "--workload",
    "--policies": "--policy",
    "--shape": "--model-shape",
    "--step-model": "--step-time",
}
"""Former names of options, by which no command calls them any more."""
COUNTS: dict[tuple[str, ...], str] = {("stress",): "--cases"}
"""Options of a former name that mean another thing: a number of generated cases."""


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands below a group, by the words that name them."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


@pytest.mark.parametrize("root", [benchmarks, app], ids=["benchmarks", "agentrt"])
def test_each_thing_has_one_name_in_all_commands(root: click.Group) -> None:
    wrong = [
        (*path, name)
        for path, command in commands(root)
        for option in command.params
        for name in option.opts
        if name in FORMER and COUNTS.get(path) != name
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "now", "says"),
    [
        ("first-runs --mixes dema", "--workload", "unknown mix 'dema'"),
        ("memory --contender cap:0", "--policy", "unknown policy 'cap:0'"),
        ("memory --repeat 0", "--seeds", "x>=1"),
        ("memory --blocks 0", "--kv-blocks", "x>=1"),
        ("paper --loads fast", "--load", "'fast'"),
        ("paper --policies=lifo", "--policy", "unknown policy 'lifo'"),
        ("policies --virtual --policies lifo", "--policy", "unknown policy 'lifo'"),
        ("policies --virtual --step-model no.json", "--step-time", "no.json"),
        ("scheduler --cases lifo", "--policy", "unknown policy 'lifo'"),
        ("gpu --out out --shape huge", "--model-shape", "'huge'"),
        ("simulate sweep --batch 0", "--max-num-seqs", "x>=1"),
        ("simulate run --repeat 0", "--seeds", "x>=1"),
    ],
)
def test_a_former_name_is_the_option_of_now_and_says_so(
    line: str, now: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(line.split()) == 2
    notice, *_, error = capsys.readouterr().err.splitlines()
    assert f" {now};" in notice, "the notice names the option of now"
    assert says in error


def test_values_with_blanks_between_are_a_list_as_before_with_a_notice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["simulate", "sweep", "--load", "0.8", "fast", "0.9"]) == 2
    notice, error = capsys.readouterr().err.splitlines()
    assert notice.startswith("--load: put commas between the values, as in --load 0.8,fast;")
    assert "load 'fast'" in error
    assert call(["simulate", "sweep", "--load", "0.8,fast", "--load", "0.9"]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert "load 'fast'" in error


@pytest.mark.parametrize("depth", ["steps", "virtual"])
def test_the_depth_of_a_simulation_is_no_choice_in_the_wheel(
    depth: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert installed(["simulate", "run", "--depth", depth]) == 2
    *_, error = said = capsys.readouterr().err.splitlines()
    if depth == "steps":
        assert "'python -m benchmarks simulate run --depth steps'" in error
    else:
        assert "--depth virtual is the only depth now" in said[0]
        assert "--workload is missing; give recorded programs" in error
