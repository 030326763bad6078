"""Files whose content is replaced atomically."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agentrt.files import replacing


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("durable", [True, False])
def test_a_reader_sees_the_old_content_until_the_block_ends(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with replacing(path, durable=durable) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("exists", [True, False])
def test_an_error_in_the_block_changes_nothing(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "state.json"
    if exists:
        path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half of the ", "content"])  # type: ignore[list-item]
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == (
        {"state.json": "old"} if exists else {}
    )


def test_permissions_are_those_of_the_old_file_or_the_owner_s(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with replacing(path) as file:
        file.write(b"first")
    assert _mode(path) == 0o600
    path.chmod(0o640)
    with replacing(path) as file:
        file.write(b"second")
    assert _mode(path) == 0o640
    with replacing(path, 0o600) as file:
        file.write(b"third")
    assert _mode(path) == 0o600


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    """Such as a settings file in a home folder that is a link into a repository of settings."""
    (tmp_path / "settings").mkdir()
    target, link = tmp_path / "settings" / "claude.json", tmp_path / "claude.json"
    target.write_text("old")
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_folder_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "none" / "state.json"):
        pass
