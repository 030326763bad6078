"""``benchmarks clients``: both loads, their counts, and bad options."""

from __future__ import annotations

import json

import httpx
import pytest

from agentrt.lab.runs.contenders import STOCK
from benchmarks.__main__ import call
from benchmarks.clients.command import table
from benchmarks.clients.load import CALLS, Counted, by_minute
from benchmarks.clients.real import CONVERSATIONS, Clients
from benchmarks.servers import Server
from tests.cli.conftest import check
from tests.doubles.ports import reserved_port
from tests.serving.local import MODEL, open_server


def test_calls_are_counted_in_the_quarter_of_a_minute_in_which_they_end() -> None:
    counted = Counted(0.5)
    for at_s in (0.0, 14.9, 15.0, 29.9, 30.0, 31.0):
        counted.ended(at_s)
    assert counted.quarters == [2, 2]
    assert (counted.calls, counted.seconds) == (4, 30.0)


def test_minutes_are_compared_one_by_one() -> None:
    base, mine = Counted(1.5), Counted(1.5)
    base.quarters, mine.quarters = [10, 10, 10, 10, 5, 5], [0, 10, 10, 10, 10, 10]
    assert by_minute(mine, base) == [0.75, 2.0]


def test_an_interrupted_cell_has_the_minutes_that_it_had() -> None:
    whole, part, none = Counted(2), Counted(2), Counted(2)
    whole.quarters, part.quarters, none.quarters = [10] * 8, [10] * 4, []
    cells = {("short", 8): whole, ("short", 32): part, ("long", 8): none}
    lines = table({cell: {STOCK: counted} for cell, counted in cells.items()}).splitlines()
    cut = [[value.strip() for value in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[:5] for row in cut] == [
        ["short", "8", STOCK, "1.00", "1.00"],
        ["short", "32", STOCK, "1.00", ""],
    ]


async def test_clients_converse_in_turns_and_end_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Server, "NAME", MODEL)
    async with open_server() as local:
        async with Clients(f"{local.url}/v1", CONVERSATIONS["short"], 3) as clients:
            turns = 0
            while turns < 2 or len(local.engine.calls) <= 3 * CALLS:
                before = len(local.engine.calls)
                ended, seconds = await clients.turn(0.1)
                assert ended == len(local.engine.calls) - before
                assert seconds >= 0.1
                turns += 1
        calls = local.engine.calls
        assert clients.failed == 0
        assert len(local.runtime.table) > 0
        first = [made for made in calls if not made.identity.parents]
        assert len(calls) > len(first) > 3


async def test_an_unreachable_server_ends_the_turn() -> None:
    url = f"http://127.0.0.1:{reserved_port('127.0.0.1')}/v1"
    async with Clients(url, CONVERSATIONS["short"], 2) as clients:
        with pytest.raises(httpx.ConnectError):
            await clients.turn(60)


@pytest.mark.engine
def test_under_fcfs_as_many_calls_end_as_under_stock(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["clients", "--clients", "12", "--minutes", "0.5", "--policy", "fcfs,default", "--json"]
    assert call([*line, "--conversation", "short"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    stock, fcfs, ours = (run["calls"] for run in json.loads(last)["runs"])
    assert len(stock) == 2
    assert fcfs == stock
    assert sum(ours) >= 0.97 * sum(stock)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--conversation", "endless"], "unknown --conversation 'endless'; available: short, long"),
        (["--policy", "cap:3"], "'cap:3' does not name a policy of agentrt's scheduler"),
        (["--clients", "0"], "--clients"),
    ],
)
def test_bad_options(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(capsys, call(["clients", *args]), words)
