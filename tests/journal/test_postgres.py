"""A journal in PostgreSQL is the same one, and outlives a connection."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentrt import Context
from agentrt.cli.doctor import CHECKS
from agentrt.cli.journal import read_journal_at
from agentrt.errors import JournalError, JournalWriteError
from agentrt.journal import JournalOptions
from agentrt.journal.analysis.reading import histories
from agentrt.journal.postgres import PostgresStore
from agentrt.journal.schema import VERSION, Statement
from agentrt.program import Program
from tests.journal.killing import World, ended, ends, live
from tests.serving.langgraph.postgres import cluster


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with cluster() as url:
        yield url


def store(url: str, **timeouts: Any) -> PostgresStore:
    return PostgresStore(url, "postgresql://here", timeouts)


async def test_a_program_that_is_killed_goes_on(url: str) -> None:
    async def main(ctx: Context, text: str) -> list[str]:
        return [text, *[str(await ctx.llm(one)) for one in ("one", "two\0", "three")]]

    with pytest.raises(JournalError, match="has no journal; name"), read_journal_at(url):
        pass
    given: Any = {"made": Program(main), "given": "té\0", "opened": lambda path: store(url)}
    assert await live(Path(), World(), at=ends("0#1"), **given) is None
    run = await ended(Path(), world := World(), **given)
    assert run.result == ["té\0", "said one", "said two\0", "said three"]
    assert world.calls == {"two\0": 1, "three": 1}
    with read_journal_at(url) as reader:
        found = list(histories(reader, limit=9, type="main", state="done"))
    assert [(one.program.id, one.totals()["nodes"]) for one in found] == [("main-1", 3)]


@pytest.mark.parametrize("drops", [False, True])
async def test_the_oldest_programs_go(url: str, drops: bool) -> None:
    async def main(ctx: Context) -> str:
        return str(await ctx.llm("tea"))

    names = [f"{name}{drops}" for name in "abcd"]
    given: Any = {"options": JournalOptions(keep=2, drops=drops), "opened": lambda path: store(url)}
    for name in names:
        await ended(Path(), made=Program(main, name), **given)
    with closing(store(url)) as reader:
        nodes = reader.query("SELECT program FROM agentrt_nodes WHERE node <> '0'")
        assert {f"{name}-1" for name in names} & {row[0] for row in nodes} == {
            f"{name}-1" for name in names[2:]
        }
        programs = {row[0] for row in reader.query("SELECT id FROM agentrt_programs")}
    assert {f"{name}-1" for name in names} & programs == {
        f"{name}-1" for name in (names[2:] if drops else names)
    }


def test_a_connection_that_was_cut_is_made_again(url: str) -> None:
    one = store(url)
    row = Statement("INSERT INTO agentrt_journal VALUES (?, ?)", ("a", "b"))
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND backend_type = 'client backend'"
        )
        one.write([row])
        found = other.execute("SELECT value FROM agentrt_journal WHERE key = 'a'").fetchall()
    assert found == [("b",)]
    with pytest.raises(JournalWriteError, match="duplicate key"):
        one.write([Statement("INSERT INTO agentrt_journal VALUES (?, ?)", ("c", "d")), row])
    assert one.query("SELECT value FROM agentrt_journal WHERE key = ?", ["c"]) == []
    one.close()


def test_reads_are_apart_from_a_write_in_another_thread(url: str) -> None:
    """A write waits in the middle of its transaction: a read neither waits nor sees the first row,
    and a read that fails does not end the transaction.
    """
    opened, count = store(url), "SELECT value FROM agentrt_journal WHERE key = ?"
    insert = "INSERT INTO agentrt_journal VALUES (?, ?)"
    rows = [Statement(insert, ("e", "1")), Statement("DELETE FROM agentrt_waits", ())]
    with psycopg.connect(url) as other, ThreadPoolExecutor() as threads:
        other.execute("LOCK TABLE agentrt_waits")
        writing = threads.submit(opened.write, rows)
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
        while not other.execute(waits).fetchall():
            pass
        assert threads.submit(opened.query, count, ["e"]).result(30) == []
        with pytest.raises(JournalError, match="nothing"):
            threads.submit(opened.query, "SELECT nothing").result(30)
        other.rollback()
        writing.result(30)
    assert opened.query(count, ["e"]) == [("1",)]
    opened.close()


def test_another_version_and_another_host(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        change = "UPDATE agentrt_journal SET value = %s WHERE key = 'version'"
        other.execute(change, [str(VERSION + 1)])
        with pytest.raises(JournalError, match="written by a newer agentrt"):
            store(url)
        other.execute(change, [str(VERSION)])
    with pytest.raises(JournalError, match=r"postgresql://here: .*; check the address"):
        store("postgresql://nobody@127.0.0.1:1/none")


def test_doctor_tries_a_database_and_writes_nothing(url: str) -> None:
    """Here, where a server runs."""
    found = CHECKS["database"]({"database": url})
    assert found is not None
    assert found == ("ok", f"{url} answers", "")
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("ALTER ROLE agentrt SET default_transaction_read_only = on")
        found = CHECKS["database"]({"database": url})
        other.execute("SET transaction_read_only = off")
        other.execute("ALTER ROLE agentrt RESET default_transaction_read_only")
    assert found is not None
    assert found[:2] == ("missing", f"{url} is read-only")
