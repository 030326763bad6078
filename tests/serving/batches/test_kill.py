"""If a server is killed repeatedly, its batches still have one line for each request."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

from openai import AsyncOpenAI

from tests.serving.batches.client import BatchServer, request
from tests.serving.batches.killed_server import CALLS, LIVE, serve
from tests.serving.langgraph.processes import Process
from tests.serving.programs.test_durable import WAIT_S

RUNS = "/v1/programs/ask/runs"
CHAT_COUNT, RUN_COUNT, KILLS = 300, 150, 5


async def test_killed_again_and_again_each_request_has_one_line(tmp_path: Path) -> None:
    """1. A server with a batch of chats and a batch of programs is killed at five random moments.

    2. The next server completes both batches: each request has one line with the right answer, and
    only calls that were in flight at a kill were made again.
    """
    rng, events_file, kill_at = random.Random(48), tmp_path / "events", tmp_path / "kill_at"
    events_file.touch()
    process = Process(f"sqlite:{tmp_path / 'a.db'}", tmp_path, serve, "/v1/programs")
    client = AsyncOpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
    server = BatchServer(None, lambda key: client)  # type: ignore[arg-type]
    try:
        await process.start()
        kill_at.write_text(str(rng.randint(100, 140)))
        runs = await server.batch(
            *(request(f"p{n}", url=RUNS, input=f"q{n}") for n in range(RUN_COUNT)), endpoint=RUNS
        )
        chats = await server.batch(*(request(f"c{n}", f"chat {n}") for n in range(CHAT_COUNT)))
        halves = 0
        for life in range(KILLS):
            if life:
                kill_at.write_text(
                    str(len(events_file.read_text().splitlines()) + rng.randint(50, 90))
                )
                process.launch()  # Does not wait for an answer: the process may die before.
            await process.died()
            halves += half_lines(tmp_path)
        kill_at.unlink()
        await process.start()
        async with asyncio.timeout(WAIT_S):
            runs, chats = await server.until(runs), await server.until(chats)
        assert (runs.status, chats.status) == ("completed", "completed")
        output = await server.lines(runs.output_file_id)
        assert [line["custom_id"] for line in output] == [f"p{n}" for n in range(RUN_COUNT)]
        for n, line in enumerate(output):
            said = f"said first q{n}; said second q{n}"
            assert line["response"]["body"]["result"] == said
            assert line["response"]["body"]["state"] == "done"
        output = await server.lines(chats.output_file_id)
        assert [line["custom_id"] for line in output] == [f"c{n}" for n in range(CHAT_COUNT)]
        for n, line in enumerate(output):
            [choice] = line["response"]["body"]["choices"]
            assert choice["message"]["content"] == f"said chat {n}"
    finally:
        process.kill()
        await client.close()
    events = Counter(events_file.read_text().splitlines())
    again = {
        kind: sum(count - 1 for event, count in events.items() if event.startswith(kind))
        for kind in ("chat", "first", "second")
    }
    sys.stdout.write(f"\nkilled {KILLS} times, {halves} half lines, made again: {again}\n")
    assert len(events) == CHAT_COUNT + 2 * RUN_COUNT
    assert again["chat"] <= KILLS * CALLS
    assert again["first"] + again["second"] <= KILLS * LIVE


def half_lines(folder: Path) -> int:
    """Return the number of files that end in the middle of a line."""
    ends = [path.read_bytes()[-1:] for path in folder.glob("a.db.files/*/*.jsonl")]
    return sum(end not in (b"", b"\n") for end in ends)
