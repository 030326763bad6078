"""The load of `agentrt bench serve`, on a server with a scripted engine, and its tables."""

from __future__ import annotations

from math import inf

import httpx
import pytest

from agentrt.lab.bench import serving
from agentrt.lab.bench.servers import Server
from agentrt.lab.bench.serving import (
    CALLS,
    COLUMNS,
    CPU,
    FOOTPRINT,
    SINGLES,
    ServingBench,
    Turn,
    run_program,
)
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
        async with httpx.AsyncClient(base_url=f"{local.url}/v1", timeout=60) as client:
            await run_program(client, "whole", inf, turn)
        depths = {call.identity.parents for call in local.engine.calls}
        assert depths == {(), *((step,) for step in range(CALLS - 1))}


async def test_single_calls_are_programs_of_their_own() -> None:
    async with open_server() as local:
        bench = ServingBench(1, 0.1, lambda message: None)
        for asked, tokens in SINGLES.items():
            made = len(local.engine.calls)
            turn = await bench.turn(f"{local.url}/v1", 16, 0.1, asked)
            assert turn.statuses == {"200": len(turn.latencies)}
            calls = local.engine.calls[made:]
            assert len({call.identity.program_id for call in calls}) == len(calls) > 0
            assert {call.spec.max_tokens for call in calls} == {tokens}


class Busy(Server):
    """A server whose process has used a second more each time that it is asked."""

    def __init__(self, url: str, step_s: float) -> None:
        super().__init__()
        self.base_url, self._step_s, self._used_s = url, step_s, 0.0

    def cpu_s(self) -> float:
        self._used_s += self._step_s
        return self._used_s


async def test_cpu_time_is_told_by_call_by_token_and_beside_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def turn(self: ServingBench, *asked: object) -> Turn:
        return Turn([0.1] * 100)

    monkeypatch.setattr(ServingBench, "turn", turn)
    bench = ServingBench(1, 1.0, lambda message: None)
    await bench.measure_cpu({"stock": Busy("stock", 0.5), "agentrt": Busy("ours", 0.6)}, 2)
    table = [line.replace(" ", "") for line in bench.cpu.table(CPU).splitlines()[2:]]
    assert table == [
        "|stock|calls|200|1|5.00(5.00-5.00)|5000|1.00(1.00-1.00)|",
        "|stock|streams|200|64|5.00(5.00-5.00)|78|1.00(1.00-1.00)|",
        "|agentrt|calls|200|1|6.00(6.00-6.00)|6000|1.20(1.20-1.20)|",
        "|agentrt|streams|200|64|6.00(6.00-6.00)|94|1.20(1.20-1.20)|",
    ]


async def test_what_fails_is_counted_and_being_busy_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(serving, "_pause", rest)
    async with open_server(limits=Limits(requests_per_minute=1)) as local:
        turn = Turn()
        for path, name, until in (("v1", "a", inf), ("none", "b", inf), ("v1", "late", 0.0)):
            async with httpx.AsyncClient(base_url=f"{local.url}/{path}", timeout=60) as client:
                await run_program(client, name, until, turn)
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
