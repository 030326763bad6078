"""The branch of a public error decides the exit code of a command that the error ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrt import errors
from agentrt.cli.faults import exit_code_of
from tests.cli.conftest import Run


def classes(base: type[errors.AgentrtError]) -> Iterator[type[errors.AgentrtError]]:
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from classes(kind)


def make(kind: type[errors.AgentrtError]) -> errors.AgentrtError:
    if issubclass(kind, errors.ProgramError):
        return kind("research/1", "research", ValueError("the message"))
    return kind("the message")


@pytest.mark.parametrize("kind", sorted(set(classes(errors.AgentrtError)), key=str))
def test_the_branch_of_an_error_decides_the_exit_code(
    kind: type[errors.AgentrtError], capsys: pytest.CaptureFixture[str]
) -> None:
    code = exit_code_of(make(kind))
    output = capsys.readouterr().err
    assert "the message" in output
    if issubclass(kind, errors.UsageError):
        assert (code, output) == (2, "error: the message\n")
    elif issubclass(kind, errors.InvariantError):
        assert code == 70
        assert "bug in agentrt" in output
    else:
        assert code == 1
        assert "bug in agentrt" not in output


@pytest.mark.parametrize(
    ("kinds", "code"),
    [
        ("InvariantError", 70),
        ("ConfigError", 2),
        ("DivergenceError", 1),
        ("ValueError", 1),
        ("ValueError ConfigError", 2),
        ("ConfigError InvariantError", 70),
    ],
)
def test_the_branch_of_runs_errors_decides_the_exit_code(
    kinds: str, code: int, run_program: Run
) -> None:
    source = f"""
import itertools
from agentrt import errors
KINDS = itertools.cycle({kinds.split()!r})

@program
async def raises(ctx):
    kind = next(KINDS)
    raise getattr(errors, kind, ValueError)("the message")
"""
    assert run_program(source, "--n", str(len(kinds.split()))).code == code


def test_every_public_error_is_tested() -> None:
    public = {value for value in vars(errors).values() if isinstance(value, type)}
    assert set(classes(errors.AgentrtError)) == public
