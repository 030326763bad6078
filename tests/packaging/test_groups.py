"""`make test` runs a failed test once more, alone, and fails if the test fails again."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
AT_FIRST = """
import pathlib

def test_a():
    seen = pathlib.Path(f"seen-{{__name__}}")
    before = seen.exists()
    seen.touch()
    assert before and {again}

def test_b():
    pathlib.Path("runs").open("a").write("b")
"""


def run_groups(folder: Path, source: str, files: int = 1) -> list[subprocess.CompletedProcess[str]]:
    """Run a group of ``files`` files of tests with the same ``source``, as `make test` does, and
    then the failed tests again.
    """
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/test-group", folder / ".ci/test-group")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload\n")
    names = ["test_it.py", *(f"test_it_{number}.py" for number in range(1, files))]
    for name in names:
        (folder / name).write_text(source)
    environment = {**os.environ, "FAILED": ".pytest_cache/failed", "PYTEST_ADDOPTS": ""}
    return [
        subprocess.run(
            [folder / ".ci/test-group", *arguments],
            check=False,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        for arguments in (["some", *names], ["--again"])
    ]


def test_a_test_that_passes_alone_is_named_and_nothing_else_runs_again(tmp_path: Path) -> None:
    first, again = run_groups(tmp_path, AT_FIRST.format(again="True"))
    assert first.returncode == 0
    assert again.returncode == 0, again.stdout
    assert "test_it.py::test_a" in again.stdout
    assert (tmp_path / "runs").read_text() == "b"


@pytest.mark.parametrize(
    ("files", "again"), [(1, "False"), (9, "True")], ids=["fails twice", "too many files fail"]
)
def test_other_failures_end_the_run(tmp_path: Path, files: int, again: str) -> None:
    first, second = run_groups(tmp_path, AT_FIRST.format(again=again), files)
    assert first.returncode == 0
    assert second.returncode == 1, second.stdout


def test_tests_that_cannot_be_collected_end_the_run_at_once(tmp_path: Path) -> None:
    first, _ = run_groups(tmp_path, "import nothing_of_this_name\n")
    assert first.returncode == 2


def test_without_failures_nothing_runs_again(tmp_path: Path) -> None:
    first, again = run_groups(tmp_path, "def test_a():\n    pass\n")
    assert (first.returncode, again.returncode) == (0, 0)
    assert again.stdout == ""
