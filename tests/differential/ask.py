"""`python -m tests.differential.ask FOLDER PYTHON FLAG…` asks both servers for the whole corpus.

The ``FLAG``s are vLLM's, and ``PYTHON`` runs the servers. What they answer is pickled into the
folder. A command of its own, since it takes as long to import vLLM, which knows its own flags, as
to ask for a hundred answers: the test runs it as a fork that has that.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agentrt.engines import EngineOptions
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.options import prepare_environment
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.servers import AgentrtServer, StockServer
from tests.differential.answers import Answer, ask_all
from tests.differential.cases import IS_TINY
from tests.differential.compare import same_events
from tests.differential.corpus import corpus
from tests.doubles.tinymodel import tiny_model

ANSWERS = "answers.pickle"
Answers = dict[str, Answer]


LEAST_SAME = 0.2
"""The share of each API's streams that must be the same event by event. An engine that is ahead of
its reader joins tokens, so that others differ.
"""
_TRIES = 20
"""How often streams that differ are asked for again, since on a busy machine most join tokens."""


class Said(NamedTuple):
    """What stock said and what we said, by the request's name, and the names of the streams that
    were the same event by event at some try.
    """

    stock: Answers
    ours: Answers
    same: set[str]


def same_streams(stock: Answers, ours: Answers) -> set[str]:
    """Return the names of the streams that are the same event by event."""
    return {name for name in streams(stock, ours) if same_events(stock[name], ours[name])}


def streams(stock: Answers, ours: Answers) -> list[str]:
    """Return the names of the requests that both servers answered with a stream."""
    return [name for name in stock if stock[name].events and ours[name].events]


def streams_to_ask_again(said: Said) -> set[str]:
    """Return the streams that were not the same yet, of APIs with less than `LEAST_SAME`."""
    by_api = dict[str, list[str]]()
    for name in streams(said.stock, said.ours):
        by_api.setdefault(name.partition("/")[0], []).append(name)
    return {
        name
        for names in by_api.values()
        if len(said.same.intersection(names)) < LEAST_SAME * len(names)
        for name in names
        if name not in said.same
    }


async def ask(folder: Path, flags: Sequence[str]) -> Said:
    """Ask both servers."""
    options = EngineOptions(scheduler=SchedulerConfig("fcfs"))
    prepare_environment(options)
    model = str(
        tiny_model(folder, says_blanks=False) if IS_TINY else embedded_model(lambda message: None)
    )
    async with (
        StockServer(options, model, flags) as stock,
        AgentrtServer(options, model, flags) as ours,
    ):
        await asyncio.gather(stock.start(contextlib.nullcontext), ours.start())
        urls = [one.base_url.removesuffix("/v1") for one in (stock, ours)]
        stock_said, ours_said = await asyncio.gather(*(ask_all(url, corpus()) for url in urls))
        said = Said(stock_said, ours_said, same_streams(stock_said, ours_said))
        for _ in range(_TRIES):
            if not (left := [case for case in corpus() if case.name in streams_to_ask_again(said)]):
                break
            again = await asyncio.gather(*(ask_all(url, left) for url in urls))
            said.same.update(same_streams(*again))
    return said


def main(folder: str, python: str, *flags: str) -> None:
    sys.executable = python
    said = asyncio.run(ask(Path(folder), flags))
    Path(folder, ANSWERS).write_bytes(pickle.dumps(tuple(said)))


if __name__ == "__main__":
    main(*sys.argv[1:])
