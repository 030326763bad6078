"""``benchmarks attack``: the effects of one tenant's requests on another tenant's calls.

A server with keys runs in a process of its own, with a tiny model. One tenant makes short calls all
the time, one after the other. Another tenant repeats the requests of an attack, many of them at the
same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx

from agentrt.engines import EngineOptions
from agentrt.executors.vllm.options import prepare_environment
from agentrt.lab.commands.options import (
    count_option,
    flag_option,
    note,
    text_option,
)
from agentrt.scheduler.config import DEFAULT_POLICY, SchedulerConfig
from agentrt.serving.tenants.keys import new_key
from benchmarks.attack.attacker import Spec, attacked
from benchmarks.attack.attacks import ATTACKS, Attack
from benchmarks.harness import Column, Results, no_collections, percentile, ratios, run_with_table
from benchmarks.options import json_option, minutes_option
from benchmarks.servers import AgentrtServer
from tests.doubles.tinymodel import tiny_model

IDLE = "none"
SLOTS = 16
_CHAT = "/v1/chat/completions"
_CALL_S = 120.0
_REST_S = 1.0
"""Seconds after an attack in which its remaining work may end."""
_DOCUMENTED = (503, 507)
_FAILED = 500
QUICK_S = 3.0
_Opened = AbstractAsyncContextManager[tuple[httpx.AsyncClient, str, str]]
COLUMNS = (
    Column("short calls", "calls", "{:.0f}"),
    Column("P50, s", "p50", "{:.3f}"),
    Column("P99, s", "p99", "{:.3f}"),
    Column("P99 / idle", "p99_to_idle", "{:.1f}"),
    Column("P99, attack elsewhere, s", "p99_elsewhere", "{:.3f}"),
    Column("failed", "failed", "{:.0f}"),
    Column("attacker's answers", "answers", "{:.0f}"),
    Column("other 5xx", "faults", "{:.0f}"),
)


@click.command()
@minutes_option(10.0, "Minutes for all attacks together.")
@flag_option("--quick", f"Run each attack for only {QUICK_S:g} s.")
@text_option("--policy", "NAME", "Policy of the server.", default=DEFAULT_POLICY)
@count_option("--replicas", default=1, about="Number of engines of the server.")
@click.option(
    "--only",
    type=click.Choice([*ATTACKS]),
    multiple=True,
    help="Run only this attack; may be repeated.",
)
@json_option
def attack(**options: Any) -> None:
    """Measure a tenant's short calls while another tenant attacks the server.

    Exits with 1 if the server answered an attacker with a 5xx status other than 503 and 507, which
    are documented, or if a short call failed.
    """
    chosen = {name: ATTACKS[name] for name in options["only"] or ATTACKS}
    seconds = QUICK_S if options["quick"] else turn_s(options["minutes"], len(chosen))
    measured = Results({"attack": "attack"})
    server = _server(options["policy"], options["replicas"])

    run_with_table(
        measure(measured, chosen, seconds, server), measured, COLUMNS, as_json=options["as_json"]
    )
    if any(run["faults"] or run["failed"] for [run] in measured.samples.values()):
        raise SystemExit(1)


def turn_s(minutes: float, attacks: int) -> float:
    """Return the seconds of a turn. There is one turn without an attack, and two turns for each
    attack: on the server, and on a listener.
    """
    return minutes * 60 / (2 * attacks + 1)


async def measure(
    measured: Results, attacks: Mapping[str, Attack], seconds: float, server: _Opened
) -> None:
    """Measure the short calls in turns of ``seconds``: one turn without an attack, and two turns
    for each attack. In the second of these two turns, the attack sends about as many requests as in
    the first, but to a listener that discards them. This turn shows how much the attacking process
    alone loads the machine.
    """
    async with server as (victim, url, key):
        await _short_calls(Short(), victim, time.monotonic() + 1.0)  # the first calls fill caches
        base: dict[str, float] = {}
        for name, attack in {IDLE: None, **attacks}.items():
            note(f"{name}: {seconds:.0f} s")
            spec = None if attack is None else Spec(name, seconds, url, key)
            short, answers = await _beside(spec, victim, seconds)
            figures = {**short.figures(), **_counted(answers)}
            base = base or figures
            if attack is not None:
                every_s = attack.clients * seconds / max(1, answers.total())
                short, _ = await _beside(Spec(name, seconds, every_s=every_s), victim, seconds)
                figures["p99_elsewhere"] = short.figures()["p99"]
            measured.add(name, figures={**figures, **ratios(figures, base, ["p99"], "_to_idle")})
            await asyncio.sleep(_REST_S)


async def _beside(
    spec: Spec | None, victim: httpx.AsyncClient, seconds: float
) -> tuple[Short, Counter[int]]:
    """Make the short calls beside an attack, and return them with the attacker's answers."""
    short, begun = Short(), asyncio.Event()
    if spec is None:
        await _short_calls(short, victim, time.monotonic() + seconds)
        return short, Counter()
    attacking = asyncio.create_task(attacked(spec, begun))
    await begun.wait()
    await _short_calls(short, victim, time.monotonic() + seconds)
    return short, await attacking


@contextlib.asynccontextmanager
async def _server(policy: str, replicas: int) -> AsyncIterator[tuple[httpx.AsyncClient, str, str]]:
    """Start a server, and yield a client with the victim's key, the URL, and the attacker's key."""
    with tempfile.TemporaryDirectory(prefix="agentrt-attack-") as folder:
        keys, model = Path(folder) / "keys.json", str(tiny_model(Path(folder) / "model"))
        victim, attacker = [new_key(keys, tenant) for tenant in ("victim", "attacker")]
        engine = EngineOptions(model, SLOTS, SchedulerConfig(policy=policy))
        prepare_environment(engine)
        own = ("--api-key-file", str(keys), "--max-calls", "256", "--replicas", str(replicas))
        async with AgentrtServer(engine, model, own=own) as server:
            await server.start()
            key = {"authorization": f"Bearer {victim}"}
            async with httpx.AsyncClient(
                base_url=server.root, timeout=_CALL_S, headers=key
            ) as client:
                yield client, server.root, attacker


@dataclass(slots=True)
class Short:
    """The seconds that all short calls took, and the number of calls that failed."""

    took_s: list[float] = field(default_factory=list)
    failed: int = 0

    def figures(self) -> dict[str, float]:
        return {
            "calls": len(self.took_s),
            "p50": percentile(self.took_s, 0.5),
            "p99": percentile(self.took_s, 0.99),
            "failed": self.failed,
        }


async def _short_calls(short: Short, client: httpx.AsyncClient, until: float) -> None:
    """Make short calls until a moment: at least one call, so that a server that hangs is measured,
    too.
    """
    body = {
        "model": AgentrtServer.NAME,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "ignore_eos": True,
    }
    with no_collections():  # pauses of this process are not pauses of the server
        while not short.took_s or time.monotonic() < until:
            began = time.monotonic()
            try:
                answer = await client.post(_CHAT, json=body)
                short.failed += answer.status_code != httpx.codes.OK
            except httpx.HTTPError:
                short.failed += 1
            short.took_s.append(time.monotonic() - began)


def _counted(answers: Counter[int]) -> dict[str, float]:
    faults = {code: n for code, n in answers.items() if code >= _FAILED}
    return {
        "answers": answers.total(),
        "faults": sum(n for code, n in faults.items() if code not in _DOCUMENTED),
    }
