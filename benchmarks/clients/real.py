"""The closed loop over HTTP: each server in a process of its own, new for each run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import httpx

from agentrt.cli.engine_log import EngineLog
from agentrt.executors.vllm.options import EngineOptions
from agentrt.lab.runs.contenders import STOCK
from benchmarks.clients.load import CALLS, Conversation, Counted
from benchmarks.servers import Server, StockServer, our_server, scheduling

CONVERSATIONS = {"short": Conversation(20, 4, 4), "long": Conversation(600, 4, 20)}
"""In words of a prompt and tokens of an answer. A long one's chat is most of a small context."""
_CALL_S = 600.0


async def run(
    name: str, conversation: str, clients: int, minutes: float, engine: EngineOptions, model: str
) -> Counted:
    """What so many clients get through on a new server of this name (`contender`)."""
    counted = Counted(minutes)
    async with _server(name, engine, model) as server:
        await load(server.base_url, CONVERSATIONS[conversation], clients, counted)
    return counted


@asynccontextmanager
async def _server(name: str, engine: EngineOptions, model: str) -> AsyncIterator[Server]:
    if name == STOCK:
        with EngineLog(verbose=False) as log:
            async with StockServer(engine, model) as stock:
                await stock.start(log.collect)
                yield stock
        return
    async with our_server(replace(engine, scheduler=scheduling(name)), model) as ours:
        await ours.start()
        yield ours


async def load(url: str, kind: Conversation, clients: int, counted: Counted) -> None:
    """Have so many clients converse with the server at ``url``, and count their calls."""
    numbers, began = count(), time.perf_counter()
    tls = httpx.create_ssl_context()  # made once: it takes milliseconds

    async def client() -> None:
        # A pool of its own for each: one of hundreds of connections costs more than the call.
        async with httpx.AsyncClient(base_url=url, verify=tls, timeout=_CALL_S) as http:
            while time.perf_counter() < began + counted.seconds:
                await _converse(http, kind, next(numbers), counted, began)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())


async def _converse(
    http: httpx.AsyncClient, kind: Conversation, number: int, counted: Counted, began: float
) -> None:
    """One conversation, of which no call begins after the run's end."""
    words = " ".join(f"w{number}.{word}" for word in range(kind.prompt // 4))
    chat: list[dict[str, Any]] = [{"role": "user", "content": f"Hello {number}: {words}"}]
    for _ in range(CALLS):
        if time.perf_counter() > began + counted.seconds:
            return
        body = {"model": Server.NAME, "messages": chat, "max_tokens": kind.output}
        body |= {"temperature": 0, "ignore_eos": True}
        answer = await http.post("chat/completions", json=body)
        if answer.status_code != httpx.codes.OK:
            counted.failed += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
            return
        counted.ended(time.perf_counter() - began)
        said = answer.json()["choices"][0]["message"]["content"]
        message = " ".join(["on"] * kind.message)
        chat += [{"role": "assistant", "content": said}, {"role": "user", "content": message}]
