"""The private parts of LangGraph that we use exist: names, hooks, checkpoint tables."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import aiosqlite
import pytest
from langgraph._internal import _constants
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from packaging.specifiers import SpecifierSet

from agentrt.serving.langgraph import _compat
from agentrt.serving.langgraph.database import _compat as tables_compat

TESTED = {
    "langgraph": ">=1.2,<1.3",
    "langgraph-checkpoint": ">=4,<5",
    "langgraph-checkpoint-sqlite": ">=3.1.1,<4",
    "langgraph-checkpoint-postgres": ">=3.1.1,<4",
    "langgraph-sdk": ">=0.4.14,<0.5",
}


@pytest.mark.parametrize("package", TESTED)
def test_the_version_is_one_that_was_tested(package: str) -> None:
    found, tested = version(package), SpecifierSet(TESTED[package])
    assert found in tested, (
        f"{package} {found} is not within {tested}: read "
        "the _compat modules of serving/langgraph beside it"
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (_compat.RESUME, "RESUME"),
        (_compat.INTERRUPT, "INTERRUPT"),
        (_compat.NULL_TASK, "NULL_TASK_ID"),
        (_compat.STRICT_RESUME, "CONFIG_KEY_STRICT_RESUME"),
    ],
)
def test_langgraphs_names_are_as_before(ours: str, theirs: str) -> None:
    assert getattr(_constants, theirs, None) == ours, f"langgraph changed {theirs}"


def test_configurable_keys_of_langgraph_have_its_prefix() -> None:
    keys = [name for name in vars(_constants) if name.startswith("CONFIG_KEY_")]
    own = [getattr(_constants, name) for name in keys]
    assert [key for key in own if key.startswith(_compat.PREGEL_PREFIX)]


def test_what_tasks_may_write_again_has_negative_numbers() -> None:
    replaced = {"__error__", "__resume__", "__interrupt__"}
    assert replaced <= WRITES_IDX_MAP.keys(), "langgraph-checkpoint changed WRITES_IDX_MAP"
    assert all(number < 0 for number in WRITES_IDX_MAP.values())


async def test_sqlites_tables_have_the_columns_that_we_use(tmp_path: Path) -> None:
    async with aiosqlite.connect(tmp_path / "a.db") as connection:
        await AsyncSqliteSaver(connection).setup()
        for table in (tables_compat.checkpoints, tables_compat.SQLITE_WRITES):
            rows = await connection.execute_fetchall(f"PRAGMA table_info({table.name})")
            missing = {column.name for column in table.c} - {row[1] for row in rows}
            assert not missing, f"langgraph-checkpoint-sqlite: {table.name} has no {missing}"
