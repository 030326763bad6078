"""The benchmark of LangGraph's API does its work on a server, and names a reference that is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.__main__ import call
from benchmarks.langgraph_runs.command import SEARCHES, opened
from benchmarks.langgraph_runs.graph import graph
from tests.doubles.ports import reserved_port
from tests.serving.langgraph.serve import serving


async def test_all_runs_end_and_searches_return_the_threads_that_match(tmp_path: Path) -> None:
    with serving({"steps": graph}, tmp_path / "runs.db") as server:
        async with opened(server.url, os.getpid()) as side:
            await side.store(30)
            figures = await side.created_and_ended(threads=4, runs=9)
            for body in SEARCHES.values():
                await side.search(body, times=2)
            threads = side.client.threads
            steps = [(thread["values"] or {})["steps"] for thread in await threads.search(limit=4)]
            [by_values] = await threads.search(**SEARCHES["by values"])
            [by_metadata] = await threads.search(**SEARCHES["by metadata"])
    assert sorted(map(len, steps)) == [4, 4, 4, 6]  # two words of each run
    assert by_values["values"] == by_metadata["values"] != {}
    assert set(figures) == {"9 runs created", "9 runs created and ended"}


def test_a_reference_that_does_not_listen_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{reserved_port('127.0.0.1')}"
    assert call(["langgraph-runs", "--reference", url]) == 2
    assert f"--reference {url}: nothing listens there" in capsys.readouterr().err
