"""`agentrt serve` and vLLM's own server: the same flags, the same model, the same answers.

Both are asked for the whole corpus, one request at a time, side by side. What differs is in the
table of docs/serve.md, or is a defect. The model is a tiny one, with which all takes
a minute; with `DIFFERENTIAL_MODEL=embedded` it is SmolLM2-135M.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from agentrt.executors.vllm.default_model import embedded_model
from agentrt.executors.vllm.options import EngineOptions, prepare_environment
from agentrt.lab.bench.servers import AgentrtServer, StockServer
from agentrt.scheduler.config import SchedulerConfig
from agentrt.testing.tinymodel import tiny_model
from tests.differential.accepted import Accepted, accepted
from tests.differential.answers import Answer, ask_all
from tests.differential.cases import Case
from tests.differential.compare import differences, same_events
from tests.differential.corpus import corpus
from tests.engine.forked import forked_python

pytestmark = pytest.mark.engine

FLAGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # What agentrt does by itself; the page says why.
    "--enable-prompt-tokens-details",
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
)
CASES = corpus()
ROWS = accepted()
LEAST_SAME_STREAMS = 0.2
"""Of each API's: an engine that is ahead of its reader joins tokens, so that others differ."""
Answers = dict[str, Answer]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answers, Answers]:
    """What stock said and what we said, by the request's name."""
    return asyncio.run(_asked(tmp_path_factory.mktemp("model")))


async def _asked(folder: Path) -> tuple[Answers, Answers]:
    options = EngineOptions(scheduler=SchedulerConfig("fcfs"))
    prepare_environment(options)
    is_tiny = os.environ.get("DIFFERENTIAL_MODEL") != "embedded"
    model = str(tiny_model(folder) if is_tiny else embedded_model(lambda message: None))
    with forked_python(folder):
        servers = StockServer(options, model, FLAGS), AgentrtServer(options, model, FLAGS)
    async with servers[0] as stock, servers[1] as ours:
        await asyncio.gather(stock.start(contextlib.nullcontext), ours.start())
        urls = (one.base_url.removesuffix("/v1") for one in (stock, ours))
        stock_said, ours_said = await asyncio.gather(*(ask_all(url, CASES) for url in urls))
    return stock_said, ours_said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_request_is_answered_as_by_vllm(case: Case, answers: tuple[Answers, Answers]) -> None:
    stock, ours = (said[case.name] for said in answers)
    found = differences(stock, ours)
    assert not [one for one in found if not any(row.excuses(case.name, one) for row in ROWS)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.requests[0])
def test_what_the_page_says_differs_does(row: Accepted, answers: tuple[Answers, Answers]) -> None:
    stock, ours = answers
    assert any(
        row.excuses(name, one) for name in stock for one in differences(stock[name], ours[name])
    )


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_streams_are_the_same_event_by_event(api: str, answers: tuple[Answers, Answers]) -> None:
    stock, ours = answers
    names = [name for name in stock if name.startswith(f"{api}/")]
    streams = [name for name in names if stock[name].events and ours[name].events]
    same = [name for name in streams if same_events(stock[name], ours[name])]
    assert len(same) >= LEAST_SAME_STREAMS * len(streams) > 0
