"""Locks beside files, and that they leave nothing behind."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from agentrt import files


def test_a_removed_lock_leaves_no_file_and_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        files.unlock(files.lock_beside(tmp_path / "a"))
        assert not [*tmp_path.iterdir()]


def test_a_lock_file_that_was_removed_meanwhile_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening of the lock file and its lock, another process ends and removes it."""
    lock, name = fcntl.lockf, tmp_path / "a.lock"
    taken: list[Any] = []

    def late(file: Any, operation: int) -> None:
        if not taken:
            name.unlink()
        taken.append(file)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "lockf", late)
    with files.lock_beside(tmp_path / "a") as file:
        assert len(taken) == 2
        assert name.samefile(file.name)
        assert file is taken[1]
        assert taken[0].closed
