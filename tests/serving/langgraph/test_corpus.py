"""The corpus: what LangGraph's own server answered to the official clients, and what this one does.

``python -m tests.serving.langgraph.corpus URL`` records the answers anew.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.serving.langgraph.corpus.allowed import ALLOWED, PAGE, allowed, table
from tests.serving.langgraph.corpus.differences import Difference, differences
from tests.serving.langgraph.corpus.play import all_graphs, play, play_javascript, recorded
from tests.serving.langgraph.serve import serving
from tests.serving.tenants.plain_keys import PlainKeys


async def test_answers_differ_from_the_references_where_they_are_meant_to(tmp_path: Path) -> None:
    """Python's client asks as a tenant, JavaScript's a server without keys."""
    theirs = recorded()
    with serving(all_graphs(), tmp_path / "tenants.db", keys=PlainKeys()) as it:
        found = await play(it.url, "ann")
    with serving(all_graphs(), tmp_path / "agentrt.db") as it:
        found |= await play_javascript(it.url, tmp_path)
    assert found.keys() == theirs.keys()
    every = [one for name in theirs for one in differences(name, theirs[name], found[name])]
    assert [one for one in every if allowed(one) is None] == []
    met = Counter(map(allowed, every))
    assert {one.there + one.here: met[one] for one in ALLOWED} == {
        one.there + one.here: one.times for one in ALLOWED
    }


def test_a_difference_that_is_not_meant_is_found() -> None:
    """In a status, in a value, in an id, in a request that is missing."""
    ids = [{"asked": "GET /a", "status": 200, "body": ["<1>", "<2>"]}]
    other = [{"asked": "GET /a", "status": 200, "body": ["<7>", "<7>"]}]
    wrong = Difference("s GET /a", "body[]", '"<2>"', '"<7>"')
    assert differences("s", ids, other) == [wrong]
    assert differences("s", ids, []) == [Difference("s GET /a", "request", "asked", "not asked")]
    refused = [{"asked": "GET /a", "status": 404, "body": {}}]
    assert differences("s", ids, refused) == [Difference("s GET /a", "status", "200", "404")]
    assert allowed(wrong) is None


def test_the_corpus_is_as_large_as_it_says() -> None:
    asked = sum(map(len, recorded().values()))
    assert asked >= 400
    assert f"{asked} requests" in PAGE.read_text()


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text()
