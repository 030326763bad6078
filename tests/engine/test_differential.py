"""`agentrt serve` and vLLM's own server: the same flags, the same model, the same answers.

Both are asked for the whole corpus, one request at a time, side by side. What differs is in the
table of docs/http-apis.md, or is a defect. The model is a tiny one, with which all takes
a minute; with `DIFFERENTIAL_MODEL=embedded` it is SmolLM2-135M.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from tests.differential import ask
from tests.differential.accepted import Accepted, accepted
from tests.differential.ask import ANSWERS, Answers
from tests.differential.compare import differences, same_events
from tests.differential.corpus import corpus
from tests.engine.forked import forked_python

# Both servers start before the first test: beside all other tests this takes minutes.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

FLAGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    # What agentrt does by itself; the page says why.
    "--enable-prompt-tokens-details",
    "--structured-outputs-config",
    '{"backend": "xgrammar", "disable_any_whitespace": true}',
)
NAMES = [case.name for case in corpus()]
APIS = list(dict.fromkeys(name.partition("/")[0] for name in NAMES))
ROWS = accepted()
LEAST_SAME_STREAMS = 0.2
"""Of each API's: an engine that is ahead of its reader joins tokens, so that others differ."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Answers, Answers]:
    """What stock said and what we said, by the request's name."""
    folder = tmp_path_factory.mktemp("model")
    with forked_python(folder):
        asking = (sys.executable, "-m", ask.__name__, str(folder), sys.executable, *FLAGS)
        subprocess.run(asking, check=True)
    said: tuple[Answers, Answers] = pickle.loads((folder / ANSWERS).read_bytes())
    return said


@pytest.mark.parametrize("api", APIS)
def test_requests_are_answered_as_by_vllm(api: str, answers: tuple[Answers, Answers]) -> None:
    stock, ours = answers
    found = [(name, one) for name in _of(api) for one in differences(stock[name], ours[name])]
    meant = [each for each in found if any(row.excuses(*each) for row in ROWS)]
    assert [each for each in found if each not in meant] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.requests[0])
def test_what_the_page_says_differs_does(row: Accepted, answers: tuple[Answers, Answers]) -> None:
    stock, ours = answers
    assert any(
        row.excuses(name, one) for name in stock for one in differences(stock[name], ours[name])
    )


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_streams_are_the_same_event_by_event(api: str, answers: tuple[Answers, Answers]) -> None:
    stock, ours = answers
    streams = [name for name in _of(api) if stock[name].events and ours[name].events]
    same = [name for name in streams if same_events(stock[name], ours[name])]
    assert len(same) >= LEAST_SAME_STREAMS * len(streams) > 0


def _of(api: str) -> list[str]:
    """The names of an API's requests."""
    return [name for name in NAMES if name.startswith(f"{api}/")]
