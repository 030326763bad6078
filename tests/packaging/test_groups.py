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
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_a(number):
    seen = pathlib.Path(f"seen-{{number}}")
    before = seen.exists()
    seen.touch()
    assert before and {again}

def test_b():
    pathlib.Path("runs").open("a").write("b")
"""


def run_groups(folder: Path, source: str) -> list[subprocess.CompletedProcess[str]]:
    """Run a group with one file of tests, as `make test` does, and then the failed tests again."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/test-group", folder / ".ci/test-group")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --disable-plugin-autoload\n")
    (folder / "test_it.py").write_text(source)
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
        for arguments in (["some", "test_it.py"], ["--again"])
    ]


def test_a_test_that_passes_alone_is_named_and_nothing_else_runs_again(tmp_path: Path) -> None:
    first, again = run_groups(tmp_path, AT_FIRST.format(count=1, again="True"))
    assert first.returncode == 0
    assert again.returncode == 0, again.stdout
    assert "test_it.py::test_a[0]" in again.stdout
    assert (tmp_path / "runs").read_text() == "b"


@pytest.mark.parametrize(
    ("count", "again"), [(1, "False"), (11, "True")], ids=["fails twice", "too many fail"]
)
def test_other_failures_end_the_run(tmp_path: Path, count: int, again: str) -> None:
    first, second = run_groups(tmp_path, AT_FIRST.format(count=count, again=again))
    assert first.returncode == 0
    assert second.returncode == 1, second.stdout


def test_tests_that_cannot_be_collected_end_the_run_at_once(tmp_path: Path) -> None:
    first, _ = run_groups(tmp_path, "import nothing_of_this_name\n")
    assert first.returncode == 2


def test_without_failures_nothing_runs_again(tmp_path: Path) -> None:
    first, again = run_groups(tmp_path, "def test_a():\n    pass\n")
    assert (first.returncode, again.returncode) == (0, 0)
    assert again.stdout == ""
