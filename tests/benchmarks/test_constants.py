"""Constants that the source has: found, replaced while something runs, and put back."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.sensitivity import Constant, constants, replaced

RULES = """
from __future__ import annotations

from functools import cache
from math import inf

COUNT = 4
_SHARE: float = 0.25
_BYTES = 3 * 2**10
_BELOW = -1.5
ON = True
NAME = "x"
LONGEST = inf
DERIVED = 2 * COUNT
TABLE = (1, 2)
_FIRST, _SECOND = 0, 1
lower = 3


@cache
def share() -> float:
    LOCAL = 5
    return _SHARE * COUNT
"""
IMPORTER = """
from fake_rules.rules import COUNT


def count() -> int:
    return COUNT
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Constant]:
    """The constants of a package with two modules, and of its files that begin with ``other``."""
    package = tmp_path / "fake_rules"
    package.mkdir()
    (package / "__init__.py").write_text("_MOST = 9\n", encoding="utf-8")
    (package / "rules.py").write_text(RULES, encoding="utf-8")
    (package / "importer.py").write_text(IMPORTER, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("", ".rules", ".importer"):
        monkeypatch.delitem(sys.modules, f"fake_rules{name}", raising=False)
    return constants([("fake_rules", "**/*.py"), ("fake_rules", "other*.py")])


def test_numbers_that_are_written_out_are_found(fake: list[Constant]) -> None:
    assert fake == [
        Constant("_MOST", "fake_rules", 9),
        Constant("COUNT", "fake_rules.rules", 4),
        Constant("_SHARE", "fake_rules.rules", 0.25),
        Constant("_BYTES", "fake_rules.rules", 3072),
        Constant("_BELOW", "fake_rules.rules", -1.5),
    ]


def test_one_is_replaced_and_put_back(fake: list[Constant]) -> None:
    rules, importer = (import_module(f"fake_rules.{name}") for name in ("rules", "importer"))
    _, count, share, *_ = fake
    with replaced(share, 0.5):
        assert (rules.share(), importer.count()) == (2.0, 4)
    with replaced(count, 8):
        assert (rules.share(), importer.count()) == (2.0, 8)
    with pytest.raises(TypeError), replaced(count, "x"):  # type: ignore[arg-type]
        rules.share()
    assert (rules.share(), importer.count()) == (1.0, 4)


def test_a_name_of_its_own_in_another_module_stays(fake: list[Constant]) -> None:
    rules, package = import_module("fake_rules.rules"), import_module("fake_rules")
    package._SHARE = rules._SHARE  # type: ignore[attr-defined]
    with replaced(fake[2], 0.5):
        assert package._SHARE == 0.25


@pytest.mark.parametrize(
    ("value", "factor", "changed"),
    [
        (4, 2.0, 8),
        (5, 0.5, 2),
        (1, 0.5, 1),
        (3, 0.5, 2),
        (-4, 0.5, -2),
        (0, 2.0, 0),
        (0.5, 0.5, 0.25),
    ],
)
def test_whole_numbers_stay_whole(value: float, factor: float, changed: float) -> None:
    found = Constant("X", "m", value).times(factor)
    assert (found, type(found)) == (changed, type(value))


PAGE = Path(__file__).resolve().parents[2] / "docs" / "scheduler.md"
OTHERS = ("agentrt.scheduler.policies.published",)
"""Modules that the default does not run."""
NOT_DECIDING = {"VERSION"}


def test_each_constant_of_the_default_is_in_the_table_with_its_value() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` (\S+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    stated = {name: float(value) for name, value in rows}
    found = {
        one.name: one
        for one in constants()
        if one.module not in OTHERS and one.name not in NOT_DECIDING
    }
    assert stated == {name: float(one.value) for name, one in found.items()}
    for one in found.values():
        assert getattr(import_module(one.module), one.name) == one.value
