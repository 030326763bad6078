"""`python -m benchmarks front`: the front ends that it compares, and its table."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

pytest.importorskip("vllm")

from benchmarks.front import command as front
from benchmarks.front import fronts
from benchmarks.front.command import COLUMNS, measure
from benchmarks.harness import Figures, Results
from benchmarks.serve import SINGLES, Turn, user
from benchmarks.servers import Server
from tests.doubles.scripted_engine import ScriptedEngine
from tests.serving.local import WAIT_S, engine_and_fronts


async def test_both_front_ends_answer_with_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, _ = await engine_and_fronts()
    ends: list[str] = []

    def engine() -> ScriptedEngine:
        return dataclasses.replace(shared, script=lambda call: fronts.SAYS, calls=[], ended=ends)

    monkeypatch.setattr(fronts, "_engine", engine)
    texts: dict[str, list[str]] = {}
    for name, opened in fronts.FRONTS.items():
        async with opened() as served, client_of(served) as client:
            turn = Turn()
            for tokens in SINGLES.values():
                answer = await turn.call(client, [user("p")], tokens)
                assert answer is not None, turn.statuses
                texts.setdefault(name, []).append(answer.json()["choices"][0]["message"]["content"])
            assert not ends
            served.settle()
            async with asyncio.timeout(WAIT_S):
                while name != Server.NAME and len(ends) < len(SINGLES):
                    await asyncio.sleep(0)
    assert texts["stock"] == texts["agentrt"]


def client_of(served: fronts.Served) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{served.url}/v1", timeout=WAIT_S)


def test_functions_are_counted_while_it_is_on() -> None:
    counter = fronts._Counter()
    len("not counted")
    counter.turn()
    len("counted")
    counter.turn()
    found = counter.called
    len("not counted")
    assert counter.called == found
    assert found >= 2


class Process:
    """A front end of which each call takes ``factor`` times what stock's does."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    async def turn(self, asked: str) -> Figures:
        return {"cpu_ms": self._factor, "cpu_us": self._factor * 1e3 / SINGLES[asked]}

    async def count(self, asked: str) -> Figures:
        return {"called": 1000 * self._factor, "called_token": 1000 * self._factor}


async def test_both_are_compared_in_each_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def opened(name: str) -> AsyncIterator[Process]:
        yield Process(1.25 if name == Server.NAME else 1.5)

    monkeypatch.setattr(front, "opened", opened)
    measured = Results({"front": "front end", "kind": "kind of call"})
    await measure(measured, 3)
    rows = [line.replace(" ", "") for line in measured.table(COLUMNS).splitlines()[2:]]
    assert rows[1] == "|agentrt|calls|1500|1500|1.200|1.50(1.50-1.50)|1500|1.20(1.20-1.20)|"
    assert rows[3] == "|agentrt|streams|1500|1500|1.200|1.50(1.50-1.50)|23|1.20(1.20-1.20)|"
