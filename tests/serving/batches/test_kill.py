"""If a server is killed repeatedly, its batches still have one line for each request."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.serving.batches import client
from tests.serving.batches.killed_server import CALLS, LIVE
from tests.serving.batches.killing import killed_batches


async def test_killed_again_and_again_each_request_has_one_line(
    tmp_path: Path, database: str
) -> None:
    """1. A server with a batch of chats and a batch of programs is killed at random moments.

    2. The next server completes both batches: each request has one line with the right answer, and
    only calls that were in flight at a kill were made again.
    """
    chats, runs, kills = (300, 150, 5) if database == "sqlite" else (120, 60, 3)
    outcome = await killed_batches(tmp_path, client.database_of(tmp_path), chats, runs, kills)
    assert outcome.statuses == ("completed", "completed")
    assert [line["custom_id"] for line in outcome.runs] == [f"p{n}" for n in range(runs)]
    for n, line in enumerate(outcome.runs):
        said = f"said first q{n}; said second q{n}"
        assert line["response"]["body"]["result"] == said
        assert line["response"]["body"]["state"] == "done"
    assert [line["custom_id"] for line in outcome.chats] == [f"c{n}" for n in range(chats)]
    for n, line in enumerate(outcome.chats):
        [choice] = line["response"]["body"]["choices"]
        assert choice["message"]["content"] == f"said chat {n}"
    again = {
        kind: sum(count - 1 for event, count in outcome.events.items() if event.startswith(kind))
        for kind in ("chat", "first", "second")
    }
    sys.stdout.write(f"\nkilled {kills} times, {outcome.halves} half lines, again: {again}\n")
    assert outcome.kills == kills
    assert len(outcome.events) == chats + 2 * runs
    assert again["chat"] <= kills * CALLS
    assert again["first"] + again["second"] <= kills * LIVE


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_memory_does_not_grow_with_the_requests(tmp_path: Path, database: str) -> None:
    """The peak of a server with 1,000 requests of each kind is at most 1.2 times that with 100."""
    peaks = []
    for count in (100, 1000):
        folder = tmp_path / str(count)
        folder.mkdir()
        outcome = await killed_batches(folder, client.database_of(folder), count, count, 0)
        assert (len(outcome.runs), len(outcome.chats)) == (count, count)
        peaks.append(outcome.peak_kib)
    sys.stdout.write(f"\npeak memory: {peaks[1] / peaks[0]:.2f} times as much\n")
    assert peaks[1] <= 1.2 * peaks[0]
