"""The file in which an engine keeps what it has learned, and what happens if no file is
possible.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrt.errors import ConfigError
from agentrt.executors.history import VERSION, read, saved
from agentrt.executors.history_folder import (
    MOST_FILES,
    common_key,
    data_folder,
    engine_key,
    history_file,
    learns,
)
from agentrt.scheduler import SchedulerConfig
from agentrt.scheduler.learned import Learned

KEY = engine_key("lab/model", batch=16, device="gpu")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of histories, which does not exist yet, of a user who has set no
    options.
    """
    monkeypatch.delenv("AGENTRT_HISTORY")
    monkeypatch.setenv("AGENTRT_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "history"


def file_of(key: str = KEY, named: str | None = None) -> tuple[Path | None, list[str]]:
    """Return the file, and the warnings."""
    warnings: list[str] = []
    return history_file(named, key, warnings.append), warnings


# -- keys ------------------------------------------------------------------------------


def test_engines_share_a_file_where_model_and_size_are_the_same(tmp_path: Path) -> None:
    size = {"batch": 16, "dtype": "bfloat16", "devices": 1}
    assert engine_key("lab/model", **size) == engine_key(
        "lab/model", **dict(reversed(size.items()))
    )
    others = [
        engine_key("lab/model", **{**size, "batch": 8}),
        engine_key("lab/model", **{**size, "devices": 2}),
        engine_key("lab/other", **size),
        engine_key("other/model", **size),
    ]
    assert len({engine_key("lab/model", **size), *others}) == 5


def test_a_folder_is_the_same_model_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "link").symlink_to("model")
    keys = {engine_key(name) for name in ("./model", f"{tmp_path}/model", "./link")}
    assert len(keys) == 1
    assert keys.pop().startswith("model-")


@pytest.mark.parametrize("model", ["lab/a b", "/", "../..", "x" * 500, "größe/模型"])
def test_a_key_is_a_plain_name_of_a_file(model: str) -> None:
    key = engine_key(model, batch=1)
    assert key == Path(key).name
    assert key.isascii()
    assert not key.startswith(".")
    assert len(key) < 80


def test_several_engines_share_a_file_if_they_are_the_same_together() -> None:
    assert common_key([]) == common_key(["", ""]) == ""
    assert common_key([KEY, KEY, ""]) == KEY
    assert common_key(["a", "b"]) == common_key(["b", "a", "b"]) not in ("", "a", "b")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, True),
        ({"policy": "fcfs"}, False),
        ({"policy": "atlas"}, False),
        ({"policy": "atlas", "retention": "cost"}, True),
        ({"policy": "fcfs", "admission": "memory"}, True),
        ({"retention": "lru", "admission": "off"}, True),
    ],
)
def test_stock_vllms_order_learns_nothing(settings: dict[str, str], expected: bool) -> None:
    assert learns(SchedulerConfig.from_dict(settings)) is expected


# -- which file ------------------------------------------------------------------------


def test_an_engine_has_a_file_of_its_own_in_the_folder(folder: Path) -> None:
    assert file_of() == (folder / f"{KEY}.v{VERSION}.json", [])
    assert folder.stat().st_mode & 0o777 == 0o700, "names of programs are the user's own"
    assert file_of("other")[0] != file_of()[0]
    assert file_of("") == (None, []), "an executor that learns nothing"


def test_without_a_setting_it_is_the_platforms_folder_for_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AGENTRT_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == tmp_path / "agentrt"


def test_a_setting_goes_before_the_environment_and_that_before_the_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_of(named="own.json") == (tmp_path / "own.json", [])
    monkeypatch.setenv("AGENTRT_HISTORY", "theirs.json")
    assert file_of() == (tmp_path / "theirs.json", [])
    assert file_of(named="own.json") == (tmp_path / "own.json", [])
    assert file_of(named="none") == (None, [])
    monkeypatch.setenv("AGENTRT_HISTORY", "none")
    assert file_of() == (None, [])
    monkeypatch.setenv("AGENTRT_HISTORY", "")
    assert file_of()[0] == folder / f"{KEY}.v{VERSION}.json"


def test_nothing_is_made_where_nothing_is_kept(folder: Path) -> None:
    file_of(named="none")
    assert not folder.exists()


# -- files and folders that are none -------------------------------------------------------


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2, "service": [], "gaps": []}'])
def test_a_named_file_that_is_none_is_refused_and_left_alone(
    content: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "own.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"own\.json: .*; name a file that this version"):
        file_of(named=str(path))
    monkeypatch.setenv("AGENTRT_HISTORY", str(path))
    with pytest.raises(ConfigError, match=r"own\.json: "):
        file_of()
    assert path.read_text() == content


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000])
def test_a_broken_file_in_the_folder_is_set_aside_with_one_warning(
    content: bytes, folder: Path
) -> None:
    path, _ = file_of()
    assert path is not None
    path.write_bytes(content)
    again, warnings = file_of()
    assert again == path
    assert not path.exists()
    assert path.with_suffix(".broken").read_bytes() == content
    assert len(warnings) == 1
    assert warnings[0].startswith(f"the statistics of earlier runs cannot be read: {path}: ")
    assert "\n" not in warnings[0]
    assert read(path) == saved(Learned())
    assert file_of() == (path, [])


def test_a_folder_that_cannot_be_written_stops_nothing(folder: Path) -> None:
    folder.parent.write_text("a file in the place of the folder")
    path, warnings = file_of()
    assert path is None
    assert len(warnings) == 1
    assert str(folder) in warnings[0]
    assert (
        "set AGENTRT_DATA to a writable folder, or AGENTRT_HISTORY=none to turn this off"
        in warnings[0]
    )


def test_a_user_without_a_home_gets_no_folder_called_tilde(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AGENTRT_DATA")
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: Path("~/.local/share") / name)
    monkeypatch.chdir(tmp_path)
    path, warnings = file_of()
    assert path is None
    assert "no home folder" in warnings[0]
    assert not (tmp_path / "~").exists()


# -- how many --------------------------------------------------------------------------


def test_the_files_that_were_not_used_for_the_longest_time_are_deleted(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(MOST_FILES + 5):
        path = folder / f"model-{number:012}.v{VERSION}.json"
        path.write_text("{}")
        os.utime(path, (1000.0 + number, 1000.0 + number))
    used, _ = file_of("used")
    assert used is not None
    used.write_text('{"version": 3, "service": [], "gaps": []}')
    os.utime(used, (10.0, 10.0))
    (folder / "notes.txt").write_text("the user's own")
    half = folder / f".{used.name}.123-0"
    half.write_text("a process died while it wrote this")
    os.utime(half, (10.0, 10.0))
    beside = folder / f".{used.name}.124-0"
    beside.write_text("a process writes this now")

    assert file_of("used") == (used, [])
    left = {path.name for path in folder.iterdir()}
    assert {used.name, "notes.txt", beside.name} <= left
    assert half.name not in left
    models = sorted(name for name in left if name.startswith("model-"))
    assert len(models) == MOST_FILES - 1
    assert models[0] == f"model-{6:012}.v{VERSION}.json"
