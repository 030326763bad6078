"""Kills a server again and again while it answers two batches, one of chats and one of programs."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.serving.batches.client import BatchServer, request
from tests.serving.batches.killed_server import serve
from tests.serving.langgraph.processes import Process

RUNS = "/v1/programs/ask/runs"
_WAIT_S = 300.0


@dataclass
class KilledBatches:
    """What two batches were at their end, after ``kills`` kills of their servers.

    ``runs`` and ``chats`` are the lines of their output files, in the order of the requests, and
    ``events`` counts how often each call was made. ``halves`` is the number of files that a kill
    left with an incomplete line, ``starts_s`` has for each server the seconds until its first call,
    and ``peak_kib`` is the peak memory of the last server.
    """

    statuses: tuple[str, ...] = ()
    runs: Sequence[Any] = ()
    chats: Sequence[Any] = ()
    kills: int = 0
    halves: int = 0
    events: Counter[str] = field(default_factory=Counter)
    starts_s: list[float] = field(default_factory=list)
    peak_kib: int = 0


async def killed_batches(
    folder: Path, database: str, chats: int, runs: int, kills: int, seed: int = 48
) -> KilledBatches:
    """Create two batches with these numbers of requests, kill their server at random moments, and
    let the last server complete the batches.
    """
    rng, events_file, kill_at = random.Random(seed), folder / "events", folder / "kill_at"
    events_file.touch()
    process, outcome = Process(database, folder, serve, "/v1/programs"), KilledBatches()
    client = AsyncOpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
    server = BatchServer(None, lambda key: client)  # type: ignore[arg-type]
    between = max(2, (chats + 2 * runs) // (kills + 2))
    try:
        await process.start()
        if kills:
            kill_at.write_text(str(rng.randint(between // 2, between)))
        made = await server.batch(
            *(request(f"p{n}", url=RUNS, input=f"q{n}") for n in range(runs)), endpoint=RUNS
        )
        others = await server.batch(*(request(f"c{n}", f"chat {n}") for n in range(chats)))
        for life in range(kills):
            if life:
                before = _lines_of(events_file)
                kill_at.write_text(str(before + rng.randint(between // 2, between)))
                began = time.monotonic()
                waiting = asyncio.create_task(asyncio.to_thread(_until_longer, events_file))
                process.launch()  # Does not wait for an answer: the process may die before.
                await process.died()
                outcome.starts_s.append(await waiting - began)
            else:
                await process.died()
            outcome.kills += 1
            outcome.halves += _half_lines(folder)
        kill_at.unlink(missing_ok=True)
        if kills:
            await process.start()
        async with asyncio.timeout(_WAIT_S):
            while not {made.status, others.status} <= {"completed", "failed"}:
                await asyncio.sleep(0.05)
                made = await client.batches.retrieve(made.id)
                others = await client.batches.retrieve(others.id)
        outcome.statuses = made.status, others.status
        outcome.peak_kib = process.peak_kib()
        outcome.runs = await server.lines(made.output_file_id)
        outcome.chats = await server.lines(others.output_file_id)
    finally:
        process.kill()
        await client.close()
    outcome.events.update(events_file.read_text().splitlines())
    return outcome


def _until_longer(file: Path) -> float:
    """Wait until a file has grown, and return the time of the monotonic clock."""
    size = file.stat().st_size
    end = time.monotonic() + _WAIT_S
    while file.stat().st_size == size and time.monotonic() < end:
        time.sleep(0.001)
    return time.monotonic()


def _lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def _half_lines(folder: Path) -> int:
    """Return the number of files that end in the middle of a line."""
    ends = [path.read_bytes()[-1:] for path in folder.glob("a.db.files/*/*.jsonl")]
    return sum(end not in (b"", b"\n") for end in ends)
