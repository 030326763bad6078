"""The table of constants in docs/policies.md is that of the code."""

from __future__ import annotations

import re
from pathlib import Path

from agentrt.lab.runs.constants import constants

PAGE = Path(__file__).resolve().parents[3] / "docs" / "policies.md"
OTHERS = ("agentrt.scheduler.policies.baselines",)
"""Modules that the default does not run."""
NOT_DECIDING = {"VERSION"}


def test_each_constant_of_the_default_is_in_the_table_with_its_value() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` (\S+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    stated = {name: float(value) for name, value in rows}
    found = {
        one.name: float(one.value)
        for one in constants()
        if one.module not in OTHERS and one.name not in NOT_DECIDING
    }
    assert stated == found
    assert len(found) <= 15
