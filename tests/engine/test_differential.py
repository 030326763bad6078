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
from tests.differential.ask import ANSWERS, LEAST_SAME, Said, streams
from tests.differential.compare import differences
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


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    folder = tmp_path_factory.mktemp("model")
    with forked_python(folder):
        asking = (sys.executable, "-m", ask.__name__, str(folder), sys.executable, *FLAGS)
        subprocess.run(asking, check=True)
    return Said(*pickle.loads((folder / ANSWERS).read_bytes()))


@pytest.mark.parametrize("api", APIS)
def test_requests_are_answered_as_by_vllm(api: str, said: Said) -> None:
    stock, ours, _ = said
    found = [(name, one) for name in _of(api) for one in differences(stock[name], ours[name])]
    meant = [each for each in found if any(row.excuses(*each) for row in ROWS)]
    assert [each for each in found if each not in meant] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.requests[0])
def test_what_the_page_says_differs_does(row: Accepted, said: Said) -> None:
    stock, ours, _ = said
    assert any(
        row.excuses(name, one) for name in stock for one in differences(stock[name], ours[name])
    )


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
def test_streams_are_the_same_event_by_event(api: str, said: Said) -> None:
    names = set(streams(said.stock, said.ours)).intersection(_of(api))
    assert len(names & said.same) >= LEAST_SAME * len(names) > 0


def _of(api: str) -> list[str]:
    """The names of an API's requests."""
    return [name for name in NAMES if name.startswith(f"{api}/")]
