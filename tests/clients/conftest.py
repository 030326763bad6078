"""One server for all clients of these tests. Its loop is the session's, and so is the tests'.

After a run, what the tests have shown of coding agents is written into a table (`features`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.features import TABLE, cells_of, table
from tests.serving.local import LocalServer

_CELLS = pytest.StashKey[dict[tuple[str, str], str]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what a test has shown."""
    report = yield
    if report.when == "call" or not report.passed:
        cells = item.config.stash.setdefault(_CELLS, {})
        callspec = getattr(item, "callspec", None)
        client = None if callspec is None else callspec.params.get("client")
        for feature, name, text in cells_of(item.iter_markers(), client):
            if not report.passed:
                cells[feature, name] = "fails"
            elif cells.get((feature, name)) != "fails":
                cells[feature, name] = text
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the table, if the environment names a file for it."""
    if file := os.environ.get(TABLE):
        cells: dict[tuple[str, str], str] = session.config.stash.get(_CELLS, {})
        Path(file).write_text(table(cells), "utf-8")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def local() -> AsyncIterator[LocalServer]:
    pytest.importorskip("vllm")
    from tests.clients.server import open_scripted

    async with open_scripted() as opened:
        yield opened
