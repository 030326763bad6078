"""All scenarios of the corpus, played against a server, and the record of a reference's answers.

The Python client's are functions; the JavaScript client's are in a script of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.clients.processes import environment, script
from tests.serving.langgraph.corpus import (
    graphs,
    of_assistants,
    of_interrupts,
    of_runs,
    of_states,
    of_store,
    of_streams,
    of_threads,
)
from tests.serving.langgraph.corpus.asking import Asking, Scenario
from tests.serving.langgraph.corpus.recorder import Answer, Exchange
from tests.serving.langgraph.corpus.shapes import Shapes

RECORDED = Path(__file__).with_name("recorded.jsonl")
_MODULES = (of_assistants, of_threads, of_states, of_store, of_runs, of_streams, of_interrupts)
_AT_ONCE = 4
JAVASCRIPT = tuple(
    f"js_{of}"
    for of in ("assistants", "threads", "states", "runs", "streams", "interrupts", "store")
)


def scenarios() -> dict[str, Scenario]:
    """Every scenario, by its name."""
    return {
        name: found
        for module in _MODULES
        for name, found in vars(module).items()
        if asyncio.iscoroutinefunction(found) and found.__module__ == module.__name__
    }


def all_graphs() -> dict[str, Any]:
    """The graphs that the scenarios ask, by the names in ``langgraph.json``."""
    deployment = json.loads(RECORDED.with_name("langgraph.json").read_text())
    return {name: getattr(graphs, name) for name in deployment["graphs"]}


async def play_javascript(url: str, home: Path, key: str | None = None) -> dict[str, list[Answer]]:
    """The answers of a server to each scenario of the JavaScript client."""
    environ = environment(home, AGENTRT_URL=url, AGENTRT_KEY=key or "")
    found = {}
    async with script("node/langgraph_corpus", environ) as running:
        for name in JAVASCRIPT:
            shapes = Shapes()
            heard = [
                Exchange(one["asked"], one["status"], one["headers"], one["body"].encode())
                for one in await running.play(name)
            ]
            found[name] = [one.answer(shapes) for one in heard]
    return found


async def play(
    url: str,
    key: str | None = None,
    *,
    at_once: int = _AT_ONCE,
    only: Collection[str] = (),
) -> dict[str, list[Answer]]:
    """The answers of a server to each scenario. None changes what another one asks for."""
    turn = asyncio.Semaphore(at_once)

    async def one(scenario: Scenario) -> list[Answer]:
        async with turn:
            client = Asking(url, key)
            try:
                return await client.play(scenario)
            finally:
                await client.close()

    every = {name: one for name, one in scenarios().items() if name in only or not only}
    answers = await asyncio.gather(*map(one, every.values()))
    return dict(zip(every, answers, strict=True))


def recorded() -> dict[str, list[Answer]]:
    """The reference's answers."""
    found: dict[str, list[Answer]] = defaultdict(list)
    for line in RECORDED.read_text().splitlines():
        one = json.loads(line)
        found[one.pop("of")].append(one)
    return dict(found)


def write(answers: Mapping[str, list[Answer]]) -> None:
    """Write the record anew, a line for each request."""
    lines = [
        json.dumps({"of": name, **one}, separators=(",", ":"), ensure_ascii=False)
        for name, every in answers.items()
        for one in every
    ]
    RECORDED.write_text("\n".join(lines) + "\n")
