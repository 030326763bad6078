"""OpenAI's API of files, tested with OpenAI's official client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from agentrt.errors import ConfigError
from agentrt.serving.batches.storage import FolderStorage
from agentrt.serving.tenants import Limits
from tests.doubles.machine import NOON, Machine
from tests.serving.batches.client import serve_batches
from tests.serving.batches.conftest import sqlite_only
from tests.serving.tenants.plain_keys import PlainKeys


async def test_a_file_is_kept_listed_read_and_deleted_also_after_a_restart(
    tmp_path: Path, database: str
) -> None:
    names = ["a.jsonl", "../../b.jsonl", "c"]
    async with serve_batches(tmp_path, machine=Machine().clocks()) as server:
        client = server.client
        made = [
            await client.files.create(file=(name, b"x" * size), purpose="batch")
            for size, name in enumerate(names)
        ]
        assert [(file.filename, file.bytes, file.status) for file in made] == [
            (name, size, "processed") for size, name in enumerate(names)
        ]
        assert {(file.created_at, file.expires_at) for file in made} == {
            (NOON, NOON + 30 * 24 * 3600)
        }
    async with serve_batches(tmp_path) as server:
        client = server.client
        assert [file.id async for file in client.files.list()] == [f.id for f in made[::-1]]
        in_pages = [file async for file in client.files.list(limit=1, order="asc")]
        assert in_pages == made
        assert not [file async for file in client.files.list(purpose="batch_output")]
        assert await client.files.retrieve(made[1].id) == made[1]
        assert (await client.files.content(made[2].id)).content == b"xx"
        deleted = await client.files.delete(made[1].id)
        assert (deleted.id, deleted.deleted) == (made[1].id, True)
        for ask in (client.files.retrieve, client.files.content, client.files.delete):
            with pytest.raises(openai.NotFoundError, match="no such file"):
                await ask(made[1].id)
    inside = [path for path in files_in(tmp_path) if path.suffix != ".lock"]
    kept = {made[0].id, made[2].id} if database == "sqlite" else set()
    assert {path.stem for path in inside} == kept
    assert {path.parent.parent for path in inside} <= {tmp_path / "a.db.files"}


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_server_without_files_writes_nothing_to_the_disk(tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        assert not (await server.client.files.list()).data
    assert not files_in(tmp_path)


async def test_tenants_see_their_own_files_only(tmp_path: Path) -> None:
    async with serve_batches(tmp_path, keys=PlainKeys()) as server:
        mine, theirs = server.clients("a"), server.clients("b")
        file = await mine.files.create(file=("a", b"x"), purpose="batch")
        assert not (await theirs.files.list()).data
        for ask in (theirs.files.retrieve, theirs.files.content, theirs.files.delete):
            with pytest.raises(openai.NotFoundError):
                await ask(file.id)
        with pytest.raises(openai.BadRequestError, match="after: no such file"):
            await theirs.files.list(after=file.id)
        assert (await mine.files.content(file.id)).content == b"x"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"data": {"purpose": "batch"}}, "file: send the file as the field 'file'"),
        ({"json": {"purpose": "batch"}}, "file: send the file as the field 'file'"),
        ({"files": {"file": b"x"}}, "but it is missing; files are for batches only"),
        ({"data": {"purpose": "vision"}, "files": {"file": b"x"}}, "must be 'batch', got 'vision'"),
        (
            {
                "data": {"purpose": "batch", "expires_after[seconds]": "4000"},
                "files": {"file": b""},
            },
            "expires_after.anchor must be 'created_at', but it is missing",
        ),
        (
            {
                "data": {
                    "purpose": "batch",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": "3599",
                },
                "files": {"file": b""},
            },
            "expires_after.seconds must be from 3600 to 2592000, got '3599'",
        ),
        (
            {"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data"}},
            "boundary",
        ),
    ],
)
async def test_a_bad_upload_is_refused(form: dict[str, Any], words: str, tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        answer = await server.local.client.post("/v1/files", **form)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["error"]["message"]
        assert not (await server.client.files.list()).data


async def test_files_have_bounds(tmp_path: Path) -> None:
    async with serve_batches(tmp_path, limits=Limits(files_mib=1)) as server:
        first = await server.client.files.create(file=("a", b"x" * 2**20), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="its limit files_mib, which is 1"):
            await server.client.files.create(file=("b", b"x"), purpose="batch")
        await server.client.files.delete(first.id)
        await server.client.files.create(file=("b", b"x"), purpose="batch")
        server.local.server.checks["disk"] = lambda: "the disk is nearly full"
        with pytest.raises(openai.InternalServerError, match="the disk is nearly full"):
            await server.client.files.create(file=("c", b"x"), purpose="batch")
        most = server.local.server.bounds.body_bytes
        with pytest.raises(openai.APIStatusError, match="larger than") as caught:
            await server.client.files.create(file=("d", b"x" * most), purpose="batch")
        assert caught.value.status_code == 413


async def test_files_that_are_uploaded_at_once_count_and_keep_their_order(tmp_path: Path) -> None:
    async with serve_batches(tmp_path, limits=Limits(files_mib=1)) as server:
        create, size = server.client.files.create, 2**20 // 4
        uploads = (create(file=(str(n), b"x" * size), purpose="batch") for n in range(20))
        answers = await asyncio.gather(*uploads, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert {type(error) for error in refused} == {openai.BadRequestError}, refused
        assert len(answers) - len(refused) == 4
        listed = [file.id async for file in server.client.files.list()]
        await server.client.files.delete(listed.pop(1))
        await create(file=("after", b"x" * size), purpose="batch")
    async with serve_batches(tmp_path) as server:
        assert [file.id async for file in server.client.files.list()][1:] == listed


@sqlite_only
def test_threads_that_write_at_once_create_the_folder_once(tmp_path: Path) -> None:
    interval, count = sys.getswitchinterval(), 8
    with ThreadPoolExecutor(count) as pool:
        sys.setswitchinterval(1e-6)
        try:
            for number in range(100):
                storage, ready = FolderStorage(tmp_path / str(number)), threading.Barrier(count)

                def write(storage: FolderStorage, ready: threading.Barrier) -> Path:
                    ready.wait()
                    return storage.create("default")

                futures = [pool.submit(write, storage, ready) for _ in range(count)]
                assert len({future.result() for future in futures}) == 1
                storage.close()
        finally:
            sys.setswitchinterval(interval)


@sqlite_only
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(ConfigError, match="cannot store files and batches"):
        FolderStorage(tmp_path / "taken")


@sqlite_only
async def test_a_folder_that_cannot_be_made_is_a_fault_of_the_server(tmp_path: Path) -> None:
    async with serve_batches(tmp_path) as server:
        (tmp_path / "a.db.files").write_text("mine")
        with pytest.raises(openai.InternalServerError, match="the server failed"):
            await server.client.files.create(file=("a", b"x"), purpose="batch")
        assert not (await server.client.files.list()).data


@sqlite_only
def test_one_server_at_a_time_has_the_files(tmp_path: Path) -> None:
    code = "import sys; from agentrt.files import *; "
    code += "file = lock_beside(Path(sys.argv[1])); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "files")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match="another server uses this folder"):
            FolderStorage(tmp_path)
        other.communicate(b"\n")
    FolderStorage(tmp_path).close()
