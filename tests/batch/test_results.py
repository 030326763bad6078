"""Files of results: a line is whole or absent, and a retry replaces lines."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrt import files
from agentrt.batch import Result, read_results
from agentrt.batch.results import ResultFile, read_result
from agentrt.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def result(item: str, state: Any = "done", **values: Any) -> Result:
    return Result(item, values.pop("sample", 0), state, **values)


async def written(path: Path, *results: Result, **options: Any) -> ResultFile:
    file = ResultFile(path, **options)
    await asyncio.gather(*map(file.put, results))
    return file


async def test_a_line_that_was_cut_off_anywhere_is_repaired(tmp_path: Path) -> None:
    """1. Two results. 2. The file is cut at each byte of the second one. 3. It is opened again: the
    second one is whole, or absent and can be written.
    """
    path = tmp_path / "r.jsonl"
    (await written(path, result("a", result={"text": "ü\n"}), result("b"))).close()
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for size in range(first, len(whole) + 1):
        path.write_bytes(whole[:size])
        file = ResultFile(path)
        assert file.has("a", 0)
        assert file.has("b", 0) == (size >= len(whole) - 1)
        if not file.has("b", 0):
            await file.put(result("b"))
        file.close()
        assert path.read_bytes() == whole


async def test_a_long_line_that_was_cut_off_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    (await written(path, result("a"))).close()
    whole = path.read_bytes()
    rest = result("b", result="ü" * 1_000_000).to_line()[:-100]
    path.write_bytes(whole + rest)
    sizes: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        data = pread(descriptor, size, offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    ResultFile(path).close()
    assert path.read_bytes() == whole
    assert sum(sizes) <= len(whole + rest)


async def test_a_reader_does_not_see_a_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    (await written(path, result("a"), result("b"))).close()
    path.write_bytes(path.read_bytes()[:-5])
    assert [each.id for each in read_results(path)] == ["a"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample", "0"),
        ("state", "odd"),
        ("seconds", "long"),
        ("calls", None),
        ("prompt_tokens", "many"),
        ("cost", "0.1"),
        ("scores", None),
        ("scores", {"right": "yes"}),
        ("score_errors", {"right": 5}),
        ("error", 5),
        ("over", ["timeout"]),
        ("program", None),
        ("attempt", "first"),
    ],
)
async def test_a_line_with_a_value_of_another_type_is_named(
    field: str, value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    (await written(path, result("a"), result("b"))).close()
    first, last = path.read_text("utf-8").splitlines()
    changed = json.dumps(json.loads(last) | {field: value})
    path.write_text(f"{first}\n{changed}\n", "utf-8")
    with pytest.raises(UsageError, match=rf"line 2: not a result: .*{field}") as error:
        list(read_results(path))
    assert str(error.value).endswith("; name a file of results"), "the file is only read"


async def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    before = result(
        "a",
        "stopped",
        result=[1, "x"],
        error="late",
        over="timeout",
        seconds=1.5,
        prompt_tokens=3,
        scores={"s": 0.5},
        cost=0.25,
        program="p-a-1",
        attempt=2,
        sample=4,
    )
    (await written(path, before)).close()
    [after] = read_results(path)
    assert after.to_line() == before.to_line()
    assert after.earlier


@pytest.mark.parametrize(
    "value",
    [float("nan"), {1: {2, 3}}, "\ud800", object, b"\xff", 1 << 20000, [float("inf")]],
    ids=range(7),
)
async def test_any_result_is_a_line_of_json(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    (await written(path, result("a", result=value), result("b"))).close()
    assert [each.id for each in read_results(path)] == ["a", "b"]


@pytest.mark.parametrize(
    "content",
    [b"hello", b'{"id": 1}\n', b"[1, 2]\n", b"\xff\xfe\n", b"SQLite format 3\0 and so on"],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="name"):
        ResultFile(path)
    assert path.read_bytes() == content


HOLDS = """
import sys
from pathlib import Path
from agentrt.batch.results import ResultFile, read_result
file = ResultFile(Path(sys.argv[1]))
print("open", flush=True)
input()
"""


def test_two_processes_cannot_write_a_file(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    command = [sys.executable, "-c", HOLDS, str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UsageError, match="being written by another process"):
            ResultFile(path)
        holder.communicate("\n")
    ResultFile(path).close()


def test_a_lock_file_that_is_removed_while_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that had the lock removes its file after another has opened it."""
    lockf, lock_file = fcntl.lockf, tmp_path / "r.jsonl.lock"
    removals = [lock_file.unlink]

    def lock(file: Any, flags: int) -> None:
        if removals:
            removals.pop()()
        lockf(file, flags)

    monkeypatch.setattr(fcntl, "lockf", lock)
    held = files.lock_beside(tmp_path / "r.jsonl")
    assert os.path.samestat(os.fstat(held.fileno()), lock_file.stat())
    files.unlock(held)
    files.unlock(held)
    assert not lock_file.exists()


@pytest.mark.parametrize("name", ["no/r.jsonl", "."])
def test_a_place_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--out"):
        ResultFile(tmp_path / name)


async def test_a_full_disk_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    file = await written(path, result("a"))
    whole, write = path.read_bytes(), os.pwrite

    def full(number: int, data: bytes, offset: int) -> int:
        if offset > len(whole):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, data[:10], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        await file.put(result("b"))
    assert path.read_bytes() == whole
    monkeypatch.setattr(os, "pwrite", write)
    await file.put(result("b"))
    file.close()
    assert [each.id for each in read_results(path)] == ["a", "b"]


async def test_a_reader_has_all_results_while_a_retry_replaces_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines are replaced after the reader has seen all of them, before it yields the first."""
    path = tmp_path / "r.jsonl"
    (await written(path, result("a", "failed"), result("b"))).close()
    file = ResultFile(path, retry="failed")
    await file.put(result("a", attempt=2))
    seen = 0

    def finishing(line: bytes) -> Result:
        nonlocal seen
        if (seen := seen + 1) == 3:
            file.finish()
        return read_result(line)

    monkeypatch.setattr("agentrt.batch.results.read_result", finishing)
    states = {each.id: (each.state, each.attempt) for each in read_results(path)}
    assert states == {"a": ("done", 2), "b": ("done", 1)}
    file.close()


@pytest.mark.parametrize("retry", ["failed", "all"])
async def test_a_retry_goes_on_after_a_kill_and_replaces_its_lines(
    retry: Any, tmp_path: Path
) -> None:
    """1. One result is there, one failed. 2. A retry makes the failed one again, which fails again,
    and is killed. 3. The same retry does not make it a third time. 4. At its end each is there
    once.
    """
    path = tmp_path / "r.jsonl"
    (await written(path, result("a"), result("b", "failed"))).close()
    file = ResultFile(path, retry=retry)
    assert (file.has("a", 0), file.has("b", 0)) == (retry == "failed", False)
    assert file.attempt("b", 0) == 2
    await file.put(result("b", "failed", attempt=2))
    file.close()  # as a kill does
    file = ResultFile(path, retry=retry)
    assert (file.has("a", 0), file.has("b", 0)) == (retry == "failed", True)
    if retry == "all":
        await file.put(result("a", attempt=2))
    file.finish()
    await file.put(result("c"))
    file.close()
    last = {each.id: (each.state, each.attempt) for each in read_results(path)}
    first = 1 if retry == "failed" else 2
    assert last == {"a": ("done", first), "b": ("failed", 2), "c": ("done", 1)}
    assert len(path.read_bytes().splitlines()) == 3
    assert sorted(os.listdir(tmp_path)) == ["r.jsonl"]  # noqa: PTH208  # async
    again = ResultFile(path, retry=retry)
    assert not again.has("b", 0)
    again.close()
