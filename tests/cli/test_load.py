"""Finding the program in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agentrt.cli import load
from agentrt.cli.faults import ImportFailedError
from agentrt.cli.load import load_program
from agentrt.errors import ProgramLoadError

pytestmark = pytest.mark.usefixtures("clean_imports")

HEAD = "from agentrt import program\n"
ONE = HEAD + "@program\nasync def one(ctx): return 1\n"
TWO = ONE + "@program(name='second-agent')\nasync def two(ctx): return 2\n"


def put(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_the_only_program_needs_no_name(tmp_path: Path) -> None:
    assert load_program(put(tmp_path, "p.py", ONE)).name == "one"


@pytest.mark.parametrize("name", ["two", "second-agent"])
def test_one_of_several_by_its_variable_or_its_type(tmp_path: Path, name: str) -> None:
    assert load_program(f"{put(tmp_path, 'p.py', TWO)}:{name}").name == "second-agent"


def test_a_second_name_for_the_same_program_is_no_second_program(tmp_path: Path) -> None:
    assert load_program(put(tmp_path, "p.py", ONE + "again = one\n")).name == "one"


def test_an_imported_program_counts_only_where_it_is_the_only_one(tmp_path: Path) -> None:
    put(tmp_path, "library_of_one.py", ONE)
    lone = put(tmp_path, "lone.py", "from library_of_one import one\n")
    own = "from library_of_one import one\n" + HEAD + "@program\nasync def own(ctx): pass\n"
    both = put(tmp_path, "both.py", own)
    assert load_program(lone).name == "one"
    assert load_program(both).name == "own"
    assert load_program(f"{both}:one").name == "one"


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    """From whatever folder it is run."""
    put(tmp_path, "neighbour_of_p.py", "value = 3\n")
    importing = "from neighbour_of_p import value\n" + ONE
    assert load_program(put(tmp_path, "p.py", importing)).name == "one"
    assert sys.modules["neighbour_of_p"].value == 3


def test_a_file_named_like_a_library_hides_nothing(tmp_path: Path) -> None:
    import json

    assert load_program(put(tmp_path, "json.py", ONE)).name == "one"
    assert sys.modules["json"] is json


def test_dataclasses_in_the_file_work(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass, KW_ONLY\n"
    text += "@dataclass\nclass A:\n    x: int\n    _: KW_ONLY\n    y: int = 0\n"
    path = put(tmp_path, "p.py", text + "made = A(x=1)\n" + ONE)
    load_program(path)
    [module] = [one for one in sys.modules.values() if getattr(one, "__file__", None) == path]
    assert (module.made.x, module.made.y) == (1, 0)


def test_a_colon_in_a_file_name_is_no_border(tmp_path: Path) -> None:
    assert load_program(put(tmp_path, "a:b.py", ONE)).name == "one"


def test_a_syntax_error_in_a_neighbour_names_the_neighbour(tmp_path: Path) -> None:
    put(tmp_path, "broken_neighbour.py", "\n\nx = = 1\n")
    with pytest.raises(ProgramLoadError, match=r"broken_neighbour\.py:3: syntax error"):
        load_program(put(tmp_path, "p.py", "import broken_neighbour\n"))


def test_an_error_of_the_files_own_code_is_not_a_usage_error(tmp_path: Path) -> None:
    path = put(tmp_path, "p.py", "open('/nowhere/at/all')\n")
    with pytest.raises(ImportFailedError) as caught:
        load_program(path)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


RES = """from dataclasses import dataclass
@dataclass
class Res:
    v: int
"""


def folders_of(tmp_path: Path, *names: str) -> list[str]:
    for name in names:
        (tmp_path / name).mkdir()
    return [put(tmp_path / name, "agent_of_a_folder.py", RES + ONE) for name in names]


def test_files_of_one_name_are_modules_of_their_own(tmp_path: Path) -> None:
    """Also the third one: none of them takes another one's place."""
    files = folders_of(tmp_path, "a", "b", "c")
    modules = [load.import_file(Path(file)) for file in files]
    assert len({module.__name__ for module in modules}) == 3
    assert all(sys.modules[module.__name__] is module for module in modules)
    assert [Path(str(module.__file__)) for module in modules] == [*map(Path, files)]


def test_a_file_is_loaded_once(tmp_path: Path) -> None:
    """Its classes are there once; if it has changed, the new ones take the place of the old."""
    file = Path(put(tmp_path, "p_that_is_loaded_once.py", RES + ONE))
    first = load.import_file(file)
    assert load.import_file(tmp_path / "." / file.name) is first
    file.write_text(ONE)
    second = load.import_file(file)
    assert second is not first
    assert sys.modules[first.__name__] is second
    assert not hasattr(second, "Res")


def test_a_file_does_not_get_another_ones_neighbours(tmp_path: Path) -> None:
    """Python has one module of a name: what one program has imported, another one would get."""
    a, b, c = (put_beside(tmp_path / name) for name in "abc")
    load_program(a)
    with pytest.raises(ProgramLoadError, match=r"imports 'state_of_a_program'"):
        load_program(b)
    (tmp_path / "c" / "state_of_a_program.py").unlink()  # then the first one is what is meant
    assert load_program(c).name == "one"


def put_beside(folder: Path) -> str:
    folder.mkdir()
    put(folder, "state_of_a_program.py", "value = 1\n")
    put(folder, f"lib_of_{folder.name}.py", "import state_of_a_program\n")
    return put(folder, "agent_beside.py", f"import lib_of_{folder.name}\n{ONE}")
