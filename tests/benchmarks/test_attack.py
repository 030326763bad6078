"""The measurement of attacks: short calls beside each, what failed, and the exit code."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import httpx
import pytest

from benchmarks.__main__ import call
from benchmarks.attack import command as attack
from benchmarks.attack.attacker import Spec, attacked
from benchmarks.attack.attacks import ATTACKS

SHORT_S = 0.05


def answering(code: int) -> Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]:
    async def answer(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        return httpx.Response(code)

    return answer


def serve(monkeypatch: pytest.MonkeyPatch, attackers: int, victims: int = 200) -> None:
    """A server that answers at once: ``attackers`` and ``victims`` are the codes for each."""

    @asynccontextmanager
    async def servers(
        policy: str, replicas: int
    ) -> AsyncIterator[tuple[httpx.AsyncClient, str, str]]:
        transport = httpx.MockTransport(answering(victims))
        yield httpx.AsyncClient(base_url="http://x", transport=transport), "http://x", "key"

    async def attacked(spec: Spec, begun: asyncio.Event) -> Counter[int]:
        begun.set()
        assert spec.url is not None or spec.every_s == 8 * SHORT_S / 3
        return Counter({attackers: 3})

    monkeypatch.setattr(attack, "_server", servers)
    monkeypatch.setattr(attack, "attacked", attacked)
    monkeypatch.setattr(attack, "QUICK_S", SHORT_S)
    monkeypatch.setattr(attack, "_REST_S", 0.0)


ONE = ["attack", "--quick", "--only", "a deep body", "--json"]


def test_short_calls_are_measured_without_an_attack_and_under_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(monkeypatch, attackers=503)
    assert call(ONE) == 0
    idle, under = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (idle["attack"], under["attack"]) == ("none", "a deep body")
    assert (idle["p99_to_idle"], idle["answers"]) == (1.0, 0)
    assert under["answers"] == 3
    assert under["p99_elsewhere"] > 0
    assert (under["faults"], under["failed"]) == (0, 0)


def test_all_turns_together_take_the_minutes() -> None:
    """Sixteen attacks, each on the server and elsewhere, and the calls alone."""
    assert attack.turn_s(11.0, 16) == 20.0


@pytest.mark.parametrize(("attackers", "victims"), [(500, 200), (200, 503)])
def test_a_server_that_fails_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, attackers: int, victims: int
) -> None:
    serve(monkeypatch, attackers, victims)
    assert call(ONE) == 1


async def test_attackers_are_a_process_of_their_own() -> None:
    """Without a server their requests go to somebody who reads them."""
    for seconds in (0.5, 5.0, 50.0):  # a busy machine takes longer to send the first
        begun = asyncio.Event()
        answers = await attacked(Spec("a deep body", seconds), begun)
        assert begun.is_set()
        if answers:
            break
    assert set(answers) == {413}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attacks_bodies_are_made_before_they_are_sent(name: str) -> None:
    method, path, body = ATTACKS[name].request(0)
    assert (method, path[0]) == ("POST", "/")
    assert body
    assert ATTACKS[name].request(0)[2] == body
