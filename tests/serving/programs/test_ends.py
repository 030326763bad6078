"""A run always ends for its client, whatever its program gives or raises."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentrt import Context
from agentrt.errors import UnrecordableError
from tests.serving.programs.parking import of, served


class Dumb:
    """A value that cannot be shown to clients."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


class DumbError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


RESULTS: dict[str, Any] = {
    "lock": threading.Lock,
    "dumb": Dumb,
    "endless": endless,
    "huge": lambda: 10**5000,
    "half": lambda: {"\ud800": "\ud83d"},
    "keys": lambda: {(1, 2): {3}},
}
KEPT = ("endless", "huge", "half", "keys")


@pytest.mark.parametrize("kind", RESULTS)
async def test_a_result_that_is_unusual(tmp_path: Path, kind: str) -> None:
    """Whoever did not wait gets it, or is told why it could not be recorded; a client that waits,
    or reads a stream, needs no record of it.
    """

    async def code(ctx: Context) -> Any:
        return RESULTS[kind]()

    async with served(tmp_path / "j", of(code)) as local:
        run = await local.started("main")
        ended = await local.until(run, lambda run: run["state"] != "running")
        if kind in KEPT:
            assert ended["state"] == "done"
        else:
            assert ended["error"]["type"] == UnrecordableError.__name__
            assert "result is of type" in ended["error"]["message"]
        path = "/v1/programs/main/runs"
        waited = (await local.client.post(path, json={})).json()
        assert (waited["state"], waited["error"]) == ("done", None)
        streamed = await local.client.post(path, json={"stream": True})
        last = [line for line in streamed.text.splitlines() if line.startswith("data: ")][-1]
        assert json.loads(last.removeprefix("data: "))["state"] == "done"


async def test_an_error_that_is_unusual(tmp_path: Path) -> None:
    raised: list[BaseException] = [DumbError(), SystemExit(3), KeyError(Dumb())]

    async def code(ctx: Context) -> Any:
        raise raised.pop()

    async with served(tmp_path / "j", of(code)) as local:
        for _ in range(3):
            run = await local.started("main")
            ended = await local.until(run, lambda run: run["state"] != "running")
            assert ended["state"] == "failed"
            assert ended["error"]["message"]
    async with served(tmp_path / "j", of(code)) as local:  # and the next server knows it, too
        for number in (1, 2, 3):
            assert (await local.run(f"main-{number}"))["state"] == "failed"


async def test_a_journal_that_cannot_be_read_is_a_fault_of_the_server(tmp_path: Path) -> None:
    async def code(ctx: Context) -> str:
        return "done"

    def renamed(name: str, new: str) -> None:
        with closing(sqlite3.connect(tmp_path / "j")) as writer:
            writer.execute(f"ALTER TABLE {name} RENAME TO {new}")

    async with served(tmp_path / "j", of(code)) as local:
        renamed("agentrt_programs", "away")
        answer = await local.client.get("/v1/programs/main/runs/main-9")
        renamed("away", "agentrt_programs")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")


async def test_a_run_is_described_after_a_restart_as_before(tmp_path: Path) -> None:
    async def calls(ctx: Context) -> str:
        await ctx.llm("one")
        return str(await ctx.llm("two"))

    async with served(tmp_path / "j", of(calls)) as local:
        run = await local.started("main")
        await local.done(run)
        before = await local.run(run)
    async with served(tmp_path / "j", of(calls)) as local:
        assert await local.run(run) == before
    assert (before["calls"], before["output_tokens"]) == (2, 4)


async def test_a_program_that_returns_at_its_deadline_is_done(tmp_path: Path) -> None:
    """The next server says the same."""

    async def returns(ctx: Context) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "what there is"
        raise AssertionError

    async with served(tmp_path / "j", of(returns)) as local:
        run = await local.started("main", deadline=0.1)
        assert await local.done(run) == "what there is"
        first = await local.run(run)
    async with served(tmp_path / "j", of(returns)) as local:
        second = await local.run(run)
    for described in (first, second):
        assert (described["result"], described["error"]) == ("what there is", None)
