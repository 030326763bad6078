"""The command that continues with what another one left open."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import pytest

from agentrt.cli.graph_plan import Invocation

GIVEN = shlex.split("g.py --input 'a b' --n=2 --policy plas --thread t -- --seed 1")
REPLY = "--human"


@pytest.mark.parametrize(
    ("thread", "ids", "command"),
    [
        ("t-1", ["x"], f"g.py --policy plas --thread t-1 {REPLY} TEXT -- --seed 1"),
        ("t-1", [], "g.py --policy plas --thread t-1 -- --seed 1"),
        (
            "t",
            ["x", "y"],
            f"g.py --policy plas --thread t {REPLY} x=TEXT {REPLY} y=TEXT -- --seed 1",
        ),
    ],
)
def test_with_a_thread_that_lasts(thread: str, ids: Sequence[str], command: str) -> None:
    assert Invocation(GIVEN).answering(thread, ids) == f"agentrt run {command}"


@pytest.mark.parametrize(
    ("ids", "end"),
    [
        (["x"], "--checkpointer memory --human TEXT"),
        ([], "--checkpointer sqlite:threads.db"),
    ],
)
def test_without_one_all_runs_again(ids: list[str], end: str) -> None:
    given = ["g.py", "--input", "a b", "--n", "2", "--checkpointer", "memory"]
    told = Invocation(given).answering(None, ids)
    assert told == f"agentrt run g.py --input 'a b' --n 2 {end}"
