"""A journal finds classes again by the file that they came from, and never another file's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentrt.cli.load import import_file
from agentrt.errors import UnrecordableError
from agentrt.journal.codec import UnkeptError, dumps, loads
from tests.journal import test_codec

pytestmark = pytest.mark.usefixtures("clean_imports")

TEXT = """import dataclasses
@dataclasses.dataclass
class Res:
    v: int
class Outer:
    class Inner(Exception):
        pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two programs whose files have one name."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "agent_of_two.py").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(folder: Path) -> ModuleType:
    return import_file(folder / "agent_of_two.py")


def forget(*modules: ModuleType) -> None:
    for module in modules:
        del sys.modules[module.__name__]


def recorded(here: Path) -> tuple[str, str]:
    """Values of both files' classes, by a process that loaded ``a`` first and is gone."""
    a, b = loaded(here / "a"), loaded(here / "b")
    texts = dumps(a.Res(1)), dumps([b.Res(2), b.Outer.Inner("x")])
    forget(a, b)
    return texts


def test_in_whatever_order_files_are_loaded(here: Path) -> None:
    of_a, of_b = recorded(here)
    b, a = loaded(here / "b"), loaded(here / "a")
    assert type(loads(of_a)) is a.Res
    res, inner = loads(of_b)
    assert (type(res), type(inner)) == (b.Res, b.Outer.Inner)


def test_another_file_of_that_name_is_no_substitute(here: Path) -> None:
    of_a, _ = recorded(here)
    loaded(here / "b")
    with pytest.raises(
        UnkeptError, match=rf"Res was recorded from {here}/a/agent_of_two.py, which"
    ):
        loads(of_a)


def test_from_another_working_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_a, _ = recorded(here)
    monkeypatch.chdir(here / "b")
    a = loaded(here / "a")
    assert type(loads(of_a)) is a.Res


def test_a_folder_that_was_moved(
    here: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same place below the working folder counts, but only once the old file is gone."""
    of_a, _ = recorded(here)
    there = tmp_path_factory.mktemp("there")
    (there / "a").mkdir()
    (there / "a" / "agent_of_two.py").write_text(TEXT)
    monkeypatch.chdir(there)
    a = loaded(there / "a")
    with pytest.raises(UnkeptError, match="not loaded now"):
        loads(of_a)
    (here / "a" / "agent_of_two.py").unlink()
    assert type(loads(of_a)) is a.Res


def test_a_class_that_is_gone(here: Path) -> None:
    of_a, _ = recorded(here)
    (here / "a" / "agent_of_two.py").write_text("Res = 3\n")
    loaded(here / "a")
    with pytest.raises(UnkeptError, match=rf"no class Res in {here}/a/agent_of_two.py any more"):
        loads(of_a)


def test_installed_classes_are_known_by_their_modules() -> None:
    assert '"builtins:KeyError"' in dumps(KeyError("x"))
    assert '"agentrt.errors:UnrecordableError"' in dumps(UnrecordableError("x"))
    assert f"{test_codec.__file__}" in dumps(test_codec.TEA).replace("/./", "/")


def test_an_earlier_version_wrote_module_names(here: Path) -> None:
    a: Any = loaded(here / "a")
    assert loads('{"$":"agent_of_two:Res","v":3}') == a.Res(3)
