"""Files and batches in PostgreSQL: long contents, lost connections and a second server."""

from __future__ import annotations

import asyncio
import functools
import io
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrt.errors import ConfigError
from agentrt.serving.batches import postgres
from agentrt.serving.batches.postgres import PostgresStorage
from agentrt.serving.langgraph.database.connections import Address
from tests.serving.batches.client import request, serve_batches
from tests.serving.langgraph.postgres import Proxy, new_database

pytestmark = pytest.mark.parametrize("database", ["postgres"], indirect=True)


@pytest.fixture
def storage(postgres_url: str) -> Iterator[PostgresStorage]:
    storage = PostgresStorage(Address.parse(new_database(postgres_url)))
    yield storage
    storage.close()


@pytest.mark.parametrize("part_bytes", [1, 7, 1000, 10**6])
def test_a_content_has_the_same_lines_whatever_its_parts(
    part_bytes: int, storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_PART_BYTES", part_bytes)
    rng = random.Random(part_bytes)
    texts = [b"", b"\n", b"no end", b"\r\n\r\nx\ry\x85\x0b\n", rng.randbytes(2000)]
    for number, text in enumerate(texts):
        content = storage.content("t", f"file-{number}")
        content.store(io.BytesIO(text))
        assert [*content.lines()] == [*io.BytesIO(text)]
        assert content.size() == len(text)
    storage.remove_orphans({("t", "file-1")})
    assert storage.content("t", "file-1").size() == 1
    with pytest.raises(FileNotFoundError):
        storage.content("t", "file-2").size()


def test_what_comes_after_the_end_of_a_storage_opens_no_connection(postgres_url: str) -> None:
    """Such a connection would keep the lock, and no other storage could use the database."""
    address = Address.parse(new_database(postgres_url))
    storage = PostgresStorage(address)
    storage.close()
    with pytest.raises(OSError, match="the storage is closed"):
        storage.put_record("t", "batch-1", "{}")
    with pytest.raises(OSError, match="the storage is closed"):
        storage.content("t", "file-1").store(io.BytesIO(b"x"))
    PostgresStorage(address).close()


def test_an_upload_that_breaks_off_leaves_nothing(storage: PostgresStorage) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("gone")

    content = storage.content("t", "file-1")
    with pytest.raises(OSError, match="gone"):
        content.store(Broken())
    with pytest.raises(FileNotFoundError):
        content.size()


def test_a_second_server_is_refused(
    storage: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = storage._address
    with monkeypatch.context() as impatient:
        impatient.setattr(postgres, "LOCK_WAIT_S", 0.0)
        with pytest.raises(ConfigError, match="another server uses this database"):
            PostgresStorage(address)
    storage.close()  # PostgreSQL releases the lock a moment later
    PostgresStorage(address).close()


def _has(calls: Sequence[Any], count: int) -> bool:
    return len(calls) >= count


async def test_a_batch_survives_lost_connections(postgres_url: str, tmp_path: Path) -> None:
    """The connection to the database is cut again and again while a batch is answered."""
    proxy = Proxy(new_database(postgres_url))
    await proxy.open()
    async with serve_batches(tmp_path, database=proxy.url) as server:
        batch = await server.batch(*(request(str(n)) for n in range(60)))
        for count in (5, 20, 40):
            enough = functools.partial(_has, server.local.engine.calls, count)
            await server.local.until(enough)
            await proxy.cut()
            await proxy.open()
        batch = await server.until(batch)
        assert batch.status == "completed"
        output = await server.lines(batch.output_file_id)
        assert [line["custom_id"] for line in output] == [str(n) for n in range(60)]
        assert not await server.lines(batch.error_file_id)
    await proxy.cut()
    await asyncio.sleep(0)
