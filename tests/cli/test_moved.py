"""Commands that have moved out of the package say where they are now."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, python


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


@pytest.mark.parametrize("study", ["sweep", "routing"])
def test_simulate_says_where_its_studies_are(study: str, command: Run) -> None:
    ran = command("simulate", study, "--workload", "mixed")
    assert ran.code == 2
    assert f"'python -m benchmarks simulate {study}'" in ran.said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--workload is missing; give recorded programs as FILE or FORMAT:FILE"),
        (("--workload", "mixed"), "the file 'mixed' does not exist"),
    ],
)
def test_simulate_wants_recorded_programs(words: tuple[str, ...], said: str) -> None:
    """In a process of its own: the benchmarks make names of generators known."""
    ran = python("-m", "agentrt.cli", "simulate", "run", *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert said in ran.stderr


def test_no_help_lists_what_has_moved(command: Run) -> None:
    assert "bench" not in command("--help").out.split()


def test_bench_gpu_runs_in_a_checkout(command: Run) -> None:
    ran = command("bench", "gpu", "--help")
    assert ran.code == 0
    assert "Usage: python -m benchmarks gpu" in ran.out
