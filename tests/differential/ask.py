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

from agentrt.engines import EngineOptions
from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.options import prepare_environment
from agentrt.scheduler.config import SchedulerConfig
from benchmarks.servers import AgentrtServer, StockServer
from tests.differential.answers import Answer, ask_all
from tests.differential.cases import IS_TINY
from tests.differential.corpus import corpus
from tests.doubles.tinymodel import tiny_model

ANSWERS = "answers.pickle"
Answers = dict[str, Answer]


async def ask(folder: Path, flags: Sequence[str]) -> tuple[Answers, Answers]:
    """What stock said and what we said, by the request's name."""
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
        urls = (one.base_url.removesuffix("/v1") for one in (stock, ours))
        stock_said, ours_said = await asyncio.gather(*(ask_all(url, corpus()) for url in urls))
    return stock_said, ours_said


def main(folder: str, python: str, *flags: str) -> None:
    sys.executable = python
    answers = asyncio.run(ask(Path(folder), flags))
    Path(folder, ANSWERS).write_bytes(pickle.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
