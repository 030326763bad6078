"""`python -m benchmarks agent-session`: the sums and shares of its turns."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from benchmarks.agent_session import as_dict, measure, table, turn_of
from tests.clients.sessions import CachedCall

TURNS = [
    turn_of([CachedCall(100, 0, 0), CachedCall(150, 96, 110)]),
    turn_of([CachedCall(200, 160, 160), CachedCall(230, 104, 210)]),
]


def test_shares_are_of_what_could_be_cached() -> None:
    rows = [line.replace(" ", "") for line in table(TURNS).splitlines()[2:]]
    assert rows == [
        "|1|2|250|110|96|87.3%|",
        "|2|2|430|370|264|71.4%|",
        "|all|4|680|480|360|75.0%|",
    ]
    assert as_dict("codex", TURNS)["share"] == 0.75


def test_a_first_call_alone_has_no_share() -> None:
    assert (
        table([turn_of([CachedCall(100, 0, 0)])])
        .splitlines()[2]
        .replace(" ", "")
        .endswith("|0|0||")
    )


@pytest.mark.engine
async def test_a_session_of_codex_is_read_from_the_prefix_cache() -> None:
    turns = await measure("codex", 2)
    assert [turn.calls for turn in turns] == [2, 2]
    shares = [turn.share for turn in turns]
    assert all(share is not None and share >= 0.95 for share in shares), turns
