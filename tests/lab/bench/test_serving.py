"""The load of `agentrt bench serve`, on a server with a scripted engine, and its tables."""

from __future__ import annotations

from math import inf

import httpx
import pytest

from agentrt.lab.bench.servers import Server
from agentrt.lab.bench.serving import CALLS, COLUMNS, FOOTPRINT, ServingBench, Turn
from agentrt.serving.tenants import Limits
from tests.serving.local import MODEL, open_server


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "NAME", MODEL)


async def test_clients_are_programs_that_end() -> None:
    async with open_server() as local:
        bench = ServingBench(3, 0.2, lambda message: None)
        turn = await bench.turn(f"{local.url}/v1", 3, 0.2)
        assert turn.statuses.keys() == {"200"}
        assert len(turn.latencies) == turn.statuses["200"] == len(local.engine.calls)
        assert len(local.runtime.table) == 0
        depths = {call.identity.parents for call in local.engine.calls}
        assert depths == {(), *((step,) for step in range(CALLS - 1))}


async def test_what_fails_is_counted_and_being_busy_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(ServingBench, "_rest", staticmethod(rest))
    async with open_server(limits=Limits(requests_per_minute=1)) as local:
        bench = ServingBench(1, 0.1, lambda message: None)
        async with httpx.AsyncClient() as client:
            turn = Turn()
            await bench.program(client, f"{local.url}/v1", "a", inf, turn)
            await bench.program(client, f"{local.url}/none", "b", inf, turn)
            await bench.program(client, f"{local.url}/v1", "late", 0.0, turn)
    assert turn.statuses == {"200": 1, "429": 1, "404": 1}
    turn.seconds = 1.0
    figures = turn.figures()
    assert (figures["calls"], figures["errors"], figures["busy"]) == (1, 1, 1)
    assert rests == [60.0, 1.0]


def test_the_tables_compare_turns_of_one_repeat() -> None:
    bench = ServingBench(2, 1.0, lambda message: None)
    turns = {
        (repeat, 2, name): Turn([0.1 * factor, 0.2 * factor * (repeat + 1)], seconds=1.0)
        for name, factor in (("agentrt", 1.05), ("stock", 1.0))
        for repeat in range(2)
    }
    bench.compare(turns)
    stock, ours = bench.measured.table(COLUMNS).splitlines()[2:]
    assert stock.split("|")[1:4] == [" stock   ", " 2       ", " 4     "]
    assert "1.05 (1.05-1.05)" in ours
    held = {"memory_mib": 100.4, "files": 30, "threads": 5, "programs": 0}
    bench.footprints.add(0, figures=held)
    assert bench.footprints.table(FOOTPRINT).splitlines()[-1].replace(" ", "") == "|0|100|30|5|0|"
