"""Where a server stores its threads and runs if nobody says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrt.cli.serving import default_database
from tests.cli.conftest import Run, Write


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTRT_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_it_is_in_the_folder_for_data_and_not_in_the_working_folder(
    data: Path, tmp_path: Path
) -> None:
    here = project(tmp_path / "my project")
    file = Path(default_database(here).removeprefix("sqlite:"))
    assert file.name == "agentrt.db"
    assert file.parent.is_dir()
    assert file.is_relative_to(data / "serve")
    assert file.parent.name.startswith("my-project-")
    assert list(here.iterdir()) == []


def test_each_working_folder_has_its_own_and_finds_it_again(data: Path, tmp_path: Path) -> None:
    first, second = project(tmp_path / "a" / "agent"), project(tmp_path / "b" / "agent")
    (tmp_path / "link").symlink_to(first)
    assert default_database(first) != default_database(second)
    assert default_database(tmp_path / "link") == default_database(first)


def test_a_database_that_an_earlier_version_left_is_used(data: Path, tmp_path: Path) -> None:
    here = project(tmp_path / "agent")
    (here / "agentrt.db").touch()
    assert default_database(here) == f"sqlite:{here / 'agentrt.db'}"
    assert not data.exists()


@pytest.mark.parametrize("folder", ["/dev/null/data", "~nobody-of-this-name/data"])
def test_without_a_folder_for_data_it_is_in_the_working_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRT_DATA", folder)
    assert default_database(tmp_path) == f"sqlite:{tmp_path / 'agentrt.db'}"


def test_a_database_that_cannot_be_written_is_one_line(command: Run, write: Write) -> None:
    source = "@program\nasync def asks(ctx, text):\n    return text\n"
    database = "sqlite:/proc/new.db"
    ran = command("serve", write(source), "--engine", "simulated", "--database", database)
    assert ran.code == 2
    assert ran.said == (
        f"error: --database {database}: No such file or directory; name a file that can be "
        "written (--database sqlite:FILE), or set AGENTRT_DATA to a writable folder with enough "
        "space"
    )
