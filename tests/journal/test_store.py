"""Files that cannot be used as a journal: one clear error each, and nothing is read of them."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from agentrt.errors import JournalError, JournalWriteError
from agentrt.journal import Journal, JournalOptions
from agentrt.journal.analysis.reading import ReadingStore, histories
from agentrt.journal.schema import VERSION, Statement
from agentrt.journal.store import SQLiteStore
from agentrt.program import Program
from tests.journal.killing import World, ended
from tests.journal.made import Made


async def made(path: Path, calls: int = 20) -> None:
    """A journal with a program that has ended."""

    async def main(ctx: Context) -> None:
        for number in range(calls):
            await ctx.llm(f"call {number} " + "x" * 2000)

    run = await ended(path, made=Program(main), given=None)
    assert run.error is None


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as writer:
        for statement in statements:
            writer.execute(statement)
        writer.commit()


def refused(path: Path, *words: str) -> None:
    """It cannot be opened, and the error has these words; the file is as it was."""
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(JournalError) as raised:
        SQLiteStore(path)
    for word in (str(path), *words):
        assert word in str(raised.value)
    assert before is None or path.read_bytes() == before


async def test_a_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("tea\n" * 1000)
    refused(tmp_path / "text", "is not a journal", "name another file")
    execute(tmp_path / "other", "CREATE TABLE tea (cups)")
    refused(tmp_path / "other", "a database of another program")
    execute(tmp_path / "server.db", "CREATE TABLE tea (cups)")
    SQLiteStore(tmp_path / "server.journal.db").close()
    refused(tmp_path / "server.db", f"the journal is {tmp_path / 'server.journal.db'}")
    refused(tmp_path, "not a regular file")
    refused(tmp_path / "nowhere" / "j", "folder")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")


async def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    (tmp_path / "j").touch()
    await made(tmp_path / "j", calls=1)


async def test_a_file_whose_creation_was_interrupted_is_a_new_journal(tmp_path: Path) -> None:
    """The process was killed, or the disk was full, before the tables were written."""
    with closing(sqlite3.connect(tmp_path / "j")) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
    assert (tmp_path / "j").stat().st_size
    await made(tmp_path / "j", calls=1)
    with closing(ReadingStore(tmp_path / "j")) as store:
        assert [program.program.id for program in histories(store, limit=9)] == ["main-1"]


async def test_another_version(tmp_path: Path) -> None:
    await made(tmp_path / "j", calls=1)
    execute(tmp_path / "j", f"PRAGMA user_version={VERSION + 1}")
    refused(tmp_path / "j", "written by a newer agentrt", f"reads format {VERSION}", "install")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
async def test_a_file_that_was_cut_off(tmp_path: Path, share: float) -> None:
    await made(tmp_path / "j")
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(whole[: int(len(whole) * share)])
    refused(tmp_path / "j", "damaged or cut off", "undamaged copy")


async def test_a_file_with_a_damaged_page(tmp_path: Path) -> None:
    await made(tmp_path / "j")
    whole = bytearray((tmp_path / "j").read_bytes())
    for at in range(4096 * 3, len(whole), 4096):
        whole[at : at + 8] = b"\xff" * 8
    (tmp_path / "j").write_bytes(bytes(whole))
    refused(tmp_path / "j", "damaged or cut off")


async def test_a_write_into_a_damaged_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "j"
    await made(path)
    with closing(SQLiteStore(path)) as store:
        execute(path, "CREATE TABLE tea (cups)", "PRAGMA wal_checkpoint(TRUNCATE)")
        whole = path.read_bytes()  # which the store reads again, since another program wrote
        path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        with pytest.raises(JournalWriteError, match="malformed; the file is damaged; restore"):
            store.write([Statement("DELETE FROM agentrt_starts", ())])


async def test_an_answer_that_was_changed(tmp_path: Path) -> None:
    """Only a program that would continue from it is refused."""
    await made(tmp_path / "j", calls=2)
    execute(tmp_path / "j", "UPDATE agentrt_ends SET outcome = 'null' WHERE node = '0#1'")

    async def main(ctx: Context) -> None:
        await ctx.llm("call 0")

    run = await ended(tmp_path / "j", made=Program(main), given=None)
    assert isinstance(run.error, JournalError)
    assert "node 0#1 of run main-1 is damaged" in str(run.error)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    """The lock is the file's, and goes with its process: here a child's."""
    path = tmp_path / "j"
    asyncio.run(made(path, calls=1))
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        store = SQLiteStore(path)
        os.write(ready[1], b"1")
        os.read(done[0], 1)
        os._exit(0 if store.name else 1)
    try:
        os.read(ready[0], 1)
        with pytest.raises(JournalError, match="is being written by another process"):
            SQLiteStore(path)
    finally:
        os.write(done[1], b"1")
        os.waitpid(child, 0)
        for end in (*ready, *done):
            os.close(end)
    SQLiteStore(path).close()


def test_a_journal_is_open_only_once_in_a_process_and_stays_locked_for_others(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j"
    with closing(SQLiteStore(path)):
        with pytest.raises(JournalError, match="is already open in this process"):
            SQLiteStore(path)
        child = os.fork()
        if not child:
            try:
                SQLiteStore(path)
            except JournalError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    SQLiteStore(path).close()


def test_a_forked_process_can_open_a_journal_that_its_parent_has_closed(tmp_path: Path) -> None:
    """The child has inherited the open lock file, but not the lock."""
    path = tmp_path / "j"
    ready = os.pipe()
    store = SQLiteStore(path)
    child = os.fork()
    if not child:
        try:
            os.read(ready[0], 1)
            SQLiteStore(path)
            os._exit(0)
        finally:
            os._exit(1)
    store.close()
    os.write(ready[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
    for end in ready:
        os.close(end)


async def test_a_file_that_another_program_has_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrt.journal.store._BUSY_S", 0.01)
    await made(tmp_path / "j", calls=1)
    with closing(sqlite3.connect(tmp_path / "j", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(JournalError, match="is locked by another program"):
            SQLiteStore(tmp_path / "j")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """Permissions do not bind root, so that a child of another user tries."""
    path = tmp_path / "j"
    asyncio.run(made(path, calls=1))
    for one in (tmp_path, *tmp_path.iterdir()):
        one.chmod(0o755 if one.is_dir() else 0o444)
    child = os.fork()
    if not child:
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            SQLiteStore(path)
        except JournalError as error:
            code = 0 if "name a file that this user may open" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


async def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """What was recorded stays, the program ends with one error, and resumes once there is room."""
    path = tmp_path / "j"

    async def main(ctx: Context) -> int:
        for number in range(20):
            await ctx.llm(f"call {number} " + "x" * 4000)
        return 20

    class Small(SQLiteStore):
        def _open(self) -> None:
            super()._open()
            self._execute("PRAGMA max_page_count=40")

    world = World()
    run = await ended(path, world, made=Program(main), given=None, opened=Small)
    assert isinstance(run.error, JournalWriteError)
    assert "full" in str(run.error)
    assert "resumes from them" in str(run.error)
    assert 1 < len(world.calls) < 20
    run = await ended(path, again := World(), made=Program(main), given=None)
    assert run.result == 20
    # The call whose answer found no room is made again.
    assert len(world.calls.keys() & again.calls.keys()) == 1


def test_a_disk_without_room_for_a_new_journal(tmp_path: Path) -> None:
    """The file's name and folder are not at fault. The limit is one of a child process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            SQLiteStore(tmp_path / "j")
        except JournalError as error:
            code = 0 if str(error).endswith("or name a file on another disk") else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("drops", [False, True])
async def test_the_oldest_programs_go(tmp_path: Path, drops: bool) -> None:
    """Of programs beyond the last ``keep``, the result alone is kept, or nothing."""
    options: Any = JournalOptions(keep=2, drops=drops)

    async def main(ctx: Context) -> str:
        return str(await ctx.llm("tea"))

    for name in ("a", "b", "c", "d"):
        await ended(tmp_path / "j", made=Program(main, name), options=options)
    journal = await Journal.open(lambda: SQLiteStore(tmp_path / "j"))
    kept = [row.id for row in await journal.programs("1 = 1")]
    await journal.close()
    with closing(sqlite3.connect(tmp_path / "j")) as reader:
        rows = reader.execute("SELECT DISTINCT program FROM agentrt_nodes WHERE node <> '0'")
        assert sorted(rows) == [("c-1",), ("d-1",)]
    assert kept == (["c-1", "d-1"] if drops else ["a-1", "b-1", "c-1", "d-1"])
    again = await ended(tmp_path / "j", world := World(), made=Program(main, "a"), options=options)
    assert again.result == "said tea"
    assert world.calls == ({"tea": 1} if drops else {})


@pytest.mark.parametrize("drops", [False, True])
async def test_the_oldest_programs_go_although_each_process_runs_few(
    tmp_path: Path, drops: bool
) -> None:
    """A tenth of ``keep`` programs and more end before others go, but not in each process."""
    options: Any = JournalOptions(keep=11, drops=drops)

    async def main(ctx: Context) -> str:
        return str(await ctx.llm("tea"))

    for number in range(14):
        await ended(tmp_path / "j", made=Program(main, f"p{number}"), options=options)
    with closing(sqlite3.connect(tmp_path / "j")) as reader:
        rows = reader.execute("SELECT DISTINCT program FROM agentrt_nodes WHERE node <> '0'")
        assert {row[0] for row in rows} == {f"p{number}-1" for number in range(3, 14)}
        (count,) = reader.execute("SELECT COUNT(*) FROM agentrt_programs").fetchone()
    assert count == (11 if drops else 14)


def test_the_queries_of_the_page_for_users(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "durability.md").read_text("utf-8")
    queries = page.split("```sql\n")[1].split("```")[0].strip().split(";\n")
    asyncio.run(made(tmp_path / "j", calls=2))
    with closing(sqlite3.connect(tmp_path / "j")) as reader:
        found = [
            reader.execute(query.replace("mine-1", "main-1").rstrip(";")).fetchall()
            for query in queries
        ]
    nodes, texts, seconds, programs = found
    assert [row[:4] for row in nodes] == [
        ("0", "program", "main", "done"),
        ("0#0", "call", "llm", "done"),
        ("0#1", "call", "llm", "done"),
    ]
    assert [name for name, _ in texts] == ["llm", "llm"]
    assert all(text.startswith("said call") for _, text in texts)
    assert seconds[0][1] > 0
    assert programs == [("main-1", "main", "default", "null")]


def test_a_read_that_nobody_waits_for_any_more_does_not_lose_its_file(tmp_path: Path) -> None:
    """Its task was cancelled, but not its thread: the file is closed after it."""
    store, reads, goes_on = SQLiteStore(tmp_path / "j"), threading.Event(), threading.Event()

    def pause() -> int:
        reads.set()
        goes_on.wait()
        return 7

    assert store._connection is not None
    store._connection.create_function("pause", 0, pause)
    with ThreadPoolExecutor(2) as threads:
        read = threads.submit(store.query, "SELECT pause()")
        reads.wait()
        close = threads.submit(store.close)
        goes_on.set()
        assert read.result() == [(7,)]
        close.result()
    with pytest.raises(JournalError, match="closed"):
        store.query("SELECT 1")


def test_who_reads_sees_one_moment(tmp_path: Path) -> None:
    """A server that drops an old program meanwhile takes it from nobody who reads."""
    path = Made(1.0).write(tmp_path / "j")
    with closing(ReadingStore(path)) as reading, closing(SQLiteStore(path)) as writing:
        writing.write([Statement("DELETE FROM agentrt_programs", ())])
        assert [one.program.id for one in histories(reading, limit=9)] == ["p-1"]
    with closing(ReadingStore(path)) as reading:
        assert [*histories(reading, limit=9)] == []
