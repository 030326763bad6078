"""Values, errors and states come back from a journal as they were, or are refused at once."""

from __future__ import annotations

import pytest
import pytest_asyncio

from benchmarks.journal_values import EQUAL, REFUSED, Row, measure

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKEPT = {
    *("3,000 levels", "defaultdict of a lambda", "chain map", "user dict", "generator"),
    *("dict view", "iterator", "memoryview", "datetime of a subclass", "local class", "function"),
    *("lambda", "module", "dataclass without a field", "dataclass with a lock"),
    *("collections.namedtuple", "field of any type with a lock", "secret", "secret alone"),
    *("model of a local class", "array of objects", "array with fields", "object", "lock"),
    *("instance of a plain class", "instance with a codec that errs", "event of a thread"),
    *("instance whose repr fails", "set of what has no order", "partial"),
}
"""What belongs to a process, is not found again by its name, or is secret."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rows() -> list[Row]:
    return await measure()


async def test_each_kind_comes_back_equal_or_is_refused(rows: list[Row]) -> None:
    assert len(rows) >= 150
    assert [row for row in rows if row.outcome not in (EQUAL, REFUSED)] == []
    refused = {row.kind for row in rows if row.outcome == REFUSED}
    assert refused == UNKEPT
    assert not any(row.door.startswith("error") for row in rows if row.outcome == REFUSED)


async def test_a_refusal_names_the_part_and_the_way_out(rows: list[Row]) -> None:
    results = [row for row in rows if row.door == "result of a tool"]
    words = {row.kind: row.words for row in results if row.outcome == REFUSED}
    assert words["lock"].startswith("result['items'][1]['lock'] is of type _thread.lock, ")
    assert words["field of any type with a lock"].startswith("result.v[0] is of type _thread.lock")
    assert words["defaultdict of a lambda"].startswith("result.default_factory is of type function")
    assert words["secret"].endswith(
        "use plain data, or register a codec: agentrt.journal.register(SecretStr, to_plain, "
        "from_plain)"
    )
