"""Commands that have moved out of the package say where they are now."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("bench", "policies"),
        ("bench --help", "policies"),
        ("bench --workload mixed --virtual -- --dtype half", "policies"),
        ("bench memory --quick", "memory"),
        ("bench external --gpu H100", "external"),
        ("bench journal --real", "journal"),
        ("bench paper", "paper"),
    ],
)
def test_bench_says_where_it_is(line: str, name: str, command: Run) -> None:
    ran = command(*line.split())
    assert ran.code == 2
    assert ran.out == ""
    [said] = ran.err.splitlines()
    assert f"'python -m benchmarks {name}'" in said


def test_no_help_lists_what_has_moved(command: Run) -> None:
    assert "bench" not in command("--help").out.split()


def test_bench_gpu_runs_in_a_checkout(command: Run) -> None:
    ran = command("bench", "gpu", "--help")
    assert ran.code == 0
    assert "Usage: python -m benchmarks gpu" in ran.out
