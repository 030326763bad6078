"""The load of `python -m benchmarks serve`, on a server with a scripted engine, and its tables."""

from __future__ import annotations

from collections import Counter
from math import inf

import httpx
import pytest

from agentrt.serving.tenants import Limits
from benchmarks import serve as serving
from benchmarks.serve import (
    CALLS,
    COLUMNS,
    CPU,
    FOOTPRINT,
    SINGLES,
    ServingBench,
    Turn,
    run_program,
)
from benchmarks.servers import Server
from tests.serving.local import MODEL, open_server


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Server, "NAME", MODEL)


async def test_clients_are_programs_that_end() -> None:
    async with open_server() as local:
        bench = ServingBench(3, 0.2, lambda message: None)
        turn = await bench.turn(f"{local.url}/v1", 3, 0.0)
        assert turn.statuses.keys() == {"200"}
        # Each client makes its first call, and begins none after the end of the turn.
        assert len(turn.latencies) == turn.statuses["200"] == len(local.engine.calls) == 3
        assert len(local.runtime.table) == 0
        async with httpx.AsyncClient(base_url=f"{local.url}/v1", timeout=60) as client:
            await run_program(client, "whole", inf, turn)
        depths = {call.identity.parents for call in local.engine.calls}
        assert depths == {(), *((step,) for step in range(CALLS - 1))}


async def test_single_calls_are_programs_of_their_own() -> None:
    async with open_server() as local:
        bench = ServingBench(1, 0.1, lambda message: None)
        for asked, tokens in SINGLES.items():
            made = len(local.engine.calls)
            turn = await bench.turn(f"{local.url}/v1", 16, 0.0, asked)
            assert turn.statuses == Counter({"200": len(turn.latencies)})
            calls = local.engine.calls[made:]
            assert len({call.identity.program_id for call in calls}) == len(calls) > 0
            assert {call.spec.max_tokens for call in calls} == {tokens}


class Busy(Server):
    """A server whose process has used ``step_s`` seconds more each time that it is asked."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s, self._used_s = step_s, 0.0

    def cpu_s(self) -> float:
        self._used_s += self._step_s
        return self._used_s


async def test_each_load_has_its_part_of_the_time_and_is_compared_with_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[object, ...]] = []

    async def turn(self: ServingBench, url: str, *load: object) -> Turn:
        asked.append(load)
        return Turn([0.1] * 99 + [0.2] * 101, seconds=1.0)

    monkeypatch.setattr(ServingBench, "turn", turn)
    bench = ServingBench(256, 60.0, lambda message: None)
    for _ in range(2):
        servers = {"fcfs": Busy(1.2), "default": Busy(1.3), "stock": Busy(1.0)}
        bench.keep({name: await bench.once(server, "") for name, server in servers.items()})
    assert asked[:4] == [(1, 10.0), (256, 30.0), (16, 10.0, "calls"), (16, 10.0, "streams")]
    table = [line.replace(" ", "") for line in bench.cpu.table(CPU).splitlines()[2:]]
    assert table == [
        "|stock|calls|400|1|5.00(5.00-5.00)|5000|1.00(1.00-1.00)|",
        "|stock|streams|400|64|5.00(5.00-5.00)|78|1.00(1.00-1.00)|",
        "|fcfs|calls|400|1|6.00(6.00-6.00)|6000|1.20(1.20-1.20)|",
        "|fcfs|streams|400|64|6.00(6.00-6.00)|94|1.20(1.20-1.20)|",
        "|default|calls|400|1|6.50(6.50-6.50)|6500|1.30(1.30-1.30)|",
        "|default|streams|400|64|6.50(6.50-6.50)|102|1.30(1.30-1.30)|",
    ]
    keys = [line.split("|")[1:4] for line in bench.measured.table(COLUMNS).splitlines()[2:]]
    assert [[cell.strip() for cell in key] for key in keys] == [
        ["stock", "1", "400"],
        ["fcfs", "1", "400"],
        ["default", "1", "400"],
        ["stock", "256", "400"],
        ["fcfs", "256", "400"],
        ["default", "256", "400"],
    ]


async def test_a_server_that_answers_nothing_has_no_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def turn(self: ServingBench, *asked: object) -> Turn:
        return Turn(seconds=1.0)

    monkeypatch.setattr(ServingBench, "turn", turn)
    bench = ServingBench(2, 1.0, lambda message: None)
    bench.keep({name: await bench.once(Busy(1.0), "") for name in bench.servers})
    assert "| default | 2       | 0     |" in bench.measured.table(COLUMNS)
    assert bench.cpu.medians()[0] == {"server": "stock", "kind": "calls", "calls": 0, "tokens": 1}


async def test_what_fails_is_counted_and_being_busy_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(serving, "_pause", rest)
    async with open_server(limits=Limits(requests_per_minute=1)) as local:
        turn = Turn()
        for path, name in (("v1", "a"), ("none", "b")):
            async with httpx.AsyncClient(base_url=f"{local.url}/{path}", timeout=60) as client:
                await run_program(client, name, inf, turn)
    assert turn.statuses == {"200": 1, "429": 1, "404": 1}
    turn.seconds = 1.0
    figures = turn.figures()
    assert (figures["calls"], figures["errors"], figures["busy"]) == (1, 1, 1)
    assert rests == [60.0, 1.0]


def test_what_a_server_holds_is_told_after_each_turn() -> None:
    bench = ServingBench(2, 1.0, lambda message: None)
    held = {"memory_mib": 100.4, "files": 30, "threads": 5, "programs": 0}
    bench.footprints.add("fcfs", 0, figures=held)
    assert (
        bench.footprints.table(FOOTPRINT).splitlines()[-1].replace(" ", "") == "|fcfs|0|100|30|5|0|"
    )
