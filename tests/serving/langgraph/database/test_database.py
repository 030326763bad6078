"""The database that a server is given: what it takes, and what it refuses."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from agentrt.errors import ConfigError, ProgramLoadError
from agentrt.serving.langgraph.database import connections as database
from agentrt.serving.langgraph.database import tables
from agentrt.serving.langgraph.database.connections import Address, open_database, reserved
from agentrt.serving.langgraph.database.tables import is_within
from agentrt.serving.langgraph.responses import check_json, encode, to_json
from tests.serving.langgraph.graphs import bare_graph
from tests.serving.langgraph.serve import serving


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ("sqlite:", "use sqlite:FILE or postgresql:"),
        ("sqlite::memory:", "use sqlite:FILE"),
        ("sqlite:///x.db", "use sqlite:FILE"),
        ("mysql://x", "use sqlite:FILE"),
        ("agentrt.db", "use sqlite:FILE"),
        ("sqlite:/no/such/folder/x.db", "folder '/no/such/folder' does not exist"),
        ("sqlite:/", "sqlite:/ is a folder"),
    ],
)
def test_an_invalid_database_is_refused(given_: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Address.parse(given_)


def test_a_password_is_not_shown() -> None:
    assert str(Address.parse("postgres://u:secret@h/d")) == "postgresql://u@h/d"
    assert str(Address.parse("postgresql://h/d")) == "postgresql://h/d"
    for url in ("postgresql://h/d?password=secret&user=u", "postgresql://u@h/d?sslpassword=secret"):
        address = Address.parse(url)
        assert "secret" not in f"{address} {address!r}"
        assert str(address).startswith(url.partition("secret")[0])


@pytest.mark.parametrize("password", ["secret/x", "se@secret", "secret x", "%secret"])
def test_a_password_that_postgresql_would_not_read_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(ConfigError, match="such as %2F for /") as raised:
        Address.parse(f"postgresql://u:{password}@h/d")
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigError, match="invalid --database 'mysql://…@h/d'"):
        Address.parse(f"mysql://u:{password}@h/d")


def test_a_blank_in_the_host_of_a_database_is_named() -> None:
    with pytest.raises(ConfigError, match="a character of its user, its password or its host"):
        Address.parse("postgresql://u@my host/d")


@pytest.mark.parametrize(
    "place", ["u:a%2Fb?c#d@h:5432/d", "[::1]:5432/d", "h:1,i:2/d?user=a@b", "/d"]
)
def test_an_address_that_postgresql_reads_is_accepted(place: str) -> None:
    assert Address.parse(f"postgresql://{place}").url == f"postgresql://{place}"


async def test_a_missing_driver_is_named_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"psycopg.*; run: pip install .*postgres"):
        async with reserved(Address.parse("postgresql://u@127.0.0.1:1/d")):
            pass


async def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("these are my notes, and they are more than a hundred bytes long " * 3)
    with pytest.raises(ConfigError, match="not a database; name another file"):
        async with open_database(Address.parse(f"sqlite:{file}")):
            pass
    assert file.read_text().startswith("these are my notes")


async def test_a_file_that_was_cut_off_is_called_damaged(tmp_path: Path) -> None:
    """It may be written, and the disk has room: another copy is needed."""
    address = Address.parse(f"sqlite:{tmp_path / 'a.db'}")
    async with open_database(address):
        pass
    whole = (tmp_path / "a.db").read_bytes()
    (tmp_path / "a.db").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="malformed; restore an undamaged copy, or name another"):
        async with open_database(address):
            pass


async def test_a_database_that_may_be_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one whose tables are there. SQLite is told so: root may write to any file."""
    address = Address.parse(f"sqlite:{tmp_path / 'a.db'}")

    engines = database.engines

    def read_only(address: Address) -> Any:
        reads, writes = engines(address)

        @sa.event.listens_for(writes.sync_engine, "begin")
        def protect(connection: Any) -> None:
            connection.execute(sa.text("PRAGMA query_only=1"))

        return reads, writes

    async with open_database(address):
        pass
    monkeypatch.setattr(database, "engines", read_only)
    with pytest.raises(ConfigError, match="attempt to write a readonly database"):
        async with open_database(address):
            pass


async def test_tables_of_another_version_are_refused(tmp_path: Path) -> None:
    address = Address.parse(f"sqlite:{tmp_path / 'a.db'}")
    async with open_database(address):
        pass
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute("UPDATE agentrt_about SET value = '99'")
    connection.close()
    with pytest.raises(ConfigError, match="version 99, and this agentrt needs version 1"):
        async with open_database(address):
            pass


def _holder(file: str) -> subprocess.Popen[bytes]:
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, file]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def test_a_second_server_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is a process's, so that another one holds it here."""
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.2)
    file = tmp_path / "a.db"
    with _holder(f"{file}.lock") as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(ConfigError, match="another server uses this database"):
            async with open_database(Address.parse(f"sqlite:{file}")):
                pass
        holder.communicate()
    async with open_database(Address.parse(f"sqlite:{file}")):
        pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "'bad' is not a graph: it is of type int"),
        (lambda: 1 / 0, "makes 'bad' raised ZeroDivisionError"),
        (lambda a, b: None, "parameters b; "),
    ],
)
def test_an_invalid_graph_gets_an_error(tmp_path: Path, value: Any, message: str) -> None:
    with (
        pytest.raises(ProgramLoadError, match=message),
        serving({"good": bare_graph(), "bad": value}, tmp_path / "a.db"),
    ):
        pass


# -- containment --------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text("ab"), values, max_size=3)


@given(objects, objects)
def test_a_part_is_within_its_whole(part: dict[str, Any], whole: dict[str, Any]) -> None:
    assert is_within(part, {**whole, **part})
    assert is_within({}, whole)
    assert is_within(whole, whole)


@pytest.mark.parametrize(
    ("part", "whole", "within"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, True),
        ({"a": [2, 1]}, {"a": [1, 2, 3]}, True),
        ({"a": [1, 4]}, {"a": [1, 2]}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {}, False),
        ({"a": []}, {"a": {}}, False),
    ],
)
def test_containment_is_that_of_jsonb(part: Any, whole: Any, within: bool) -> None:
    assert is_within(part, whole) is within


# -- JSON ---------------------------------------------------------------------------------

# All that UTF-8 has. Hypothesis takes a second to find that out by itself.
texts = st.text(st.characters(exclude_categories=["Cs"]))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(),
    lambda inner: (
        st.lists(inner) | st.sets(st.integers()) | st.dictionaries(texts | st.integers(), inner)
    ),
    max_leaves=10,
)


@given(anything)
def test_whatever_a_graph_has_becomes_json_that_can_be_kept(value: Any) -> None:
    check_json(to_json(value))
    assert encode(value)


def test_an_object_without_json_becomes_its_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "odd"

    assert to_json({"a": Odd(), "b": ValueError("x"), "c": {1, 2}}) == {
        "a": "odd",
        "b": {"error": "ValueError", "message": "x"},
        "c": [1, 2],
    }


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Place:
    name: Any
    at: Any
    _secret: int = 1


@dataclass(slots=True)
class Slotted:
    name: Any


WHOLE: list[Any] = [
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    date(2026, 1, 2),
    UUID(int=7),
    Color.RED,
    Point(1, Color.RED),
    Place("a", Slotted(UUID(int=7))),
    HumanMessage("hi", id="m1"),
    {True: 1, None: 2, Color.RED: 3, date(2026, 1, 2): 4},
    (1.5, [date(2026, 1, 2)]),
]


@pytest.mark.parametrize("value", WHOLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("odd", ["\ud800", 2**70, {("a", 1): 2}], ids=["text", "number", "key"])
def test_a_part_without_json_leaves_the_other_parts_unchanged(value: Any, odd: Any) -> None:
    plain = to_json(value)
    assert to_json({"odd": odd, "value": value})["value"] == plain
    assert to_json([value, odd])[0] == plain
    assert to_json(Place(odd, value)) == {"name": to_json(odd), "at": plain}
    assert to_json(Point(odd, value)) == {"x": to_json(odd), "y": plain}


async def test_errors_that_are_logged_do_not_tell_values(tmp_path: Path) -> None:
    async with open_database(Address.parse(f"sqlite:{tmp_path / 'a.db'}")) as opened:
        twice = sa.insert(tables.about).values(key="version", value="a client's secret")
        with pytest.raises(sa.exc.IntegrityError) as raised:
            await opened.write(twice)
    assert "secret" not in str(raised.value)
