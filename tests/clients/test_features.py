"""The table of docs/clients.md is the one that the tests of these clients make."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.clients import test_agents, test_sessions, test_wire_search
from tests.clients.features import CLIENTS, TABLE, cells_of, table
from tests.pages import text_of

pytestmark = pytest.mark.engine


def marks_of(function: object) -> Iterable[pytest.Mark]:
    marks: Iterable[pytest.Mark] = getattr(function, "pytestmark", ())
    return marks


def test_the_page_has_the_table_of_the_tests() -> None:
    cells: dict[tuple[str, str], str] = {}
    for module in (test_agents, test_sessions, test_wire_search):
        for function in vars(module).values():
            for feature, client, text in cells_of(marks_of(function), None):
                assert cells.setdefault((feature, client), text) == text
    assert {client for _, client in cells} == set(CLIENTS)
    text = table(cells)
    assert text in text_of("clients.md"), f"write it with {TABLE}=FILE:\n{text}"
