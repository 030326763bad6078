"""Each instant of a recorded program has one reason, and the reasons sum up to its wall time."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing, suppress
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt import Context, Runtime, program, tool
from agentrt.errors import JournalError
from agentrt.journal import Journal
from agentrt.journal.analysis.shares import shares_of
from agentrt.journal.analysis.wall import ALL_REASONS, read_program
from agentrt.journal.store import SQLiteStore
from agentrt.request import CallReport
from agentrt.request.spans import REASONS, Cause
from agentrt.runtime.durable import Durable
from agentrt.runtime.run import Run
from agentrt.steady import MachineClocks
from tests.doubles.scripted import ScriptedExecutor
from tests.journal.made import BEGAN, Made, spent

FILES = count()


def test_a_chain_of_nodes(tmp_path: Path) -> None:
    """1. Own code. 2. A call: the way there, its spans. 3. A tool, a human, a sleep, an event."""
    made = Made(20.0)
    spans = spent(["queued", 1.0], ["prefill", 0.5], ["decode", 2.0])
    made.node("0#0", "call", 1.0, 5.0, report=spans)
    made.node("0#1", "tool", 6.0, 8.0, parents=["0#0"])
    made.node("0#2", "human", 8.0, 13.0, parents=["0#1"])
    made.node("0#3", "sleep", 13.0, 14.0, parents=["0#2"])
    made.node("0#4", "event", 14.0, 20.0, parents=["0#3"])
    assert made.times(tmp_path / "j") == [
        (1.0, "own code", ""),
        (0.5, "starting", "0#0"),
        (1.0, "queued", "0#0"),
        (0.5, "prefill", "0#0"),
        (2.0, "decode", "0#0"),
        (1.0, "own code", ""),
        (2.0, "tool", "0#1"),
        (5.0, "human", "0#2"),
        (1.0, "event", "0#3"),
        (6.0, "event", "0#4"),
    ]


def test_a_tool_that_waits_for_its_turn(tmp_path: Path) -> None:
    """1. Own code. 2. A tool of another program has the place. 3. So has one of this program, which
    ends meanwhile, and counts itself. 4. The wait cannot begin before what came before.
    """
    made = Made(20.0)
    made.node("0.0#0", "tool", 3.0, 5.0)
    made.node("0#0", "tool", 6.0, 8.0, report={"turn_s": 5.0})
    made.node("0#1", "tool", 9.0, 20.0, parents=["0#0"], report={"turn_s": 4.0})
    assert made.times(tmp_path / "j") == [
        (1.0, "own code", ""),
        (2.0, "turn", "0#0"),
        (2.0, "tool", "0.0#0"),
        (1.0, "turn", "0#0"),
        (2.0, "tool", "0#0"),
        (1.0, "turn", "0#1"),
        (11.0, "tool", "0#1"),
    ]


@pytest.mark.parametrize("fails", [False, True])
async def test_how_long_a_tool_waits_is_recorded(fails: bool, tmp_path: Path) -> None:
    """The second program's has to wait for the first one's, for 5 s of a clock made up."""
    clock, may_end = SimpleNamespace(now=BEGAN), asyncio.Event()
    machine = MachineClocks(lambda: clock.now, lambda: clock.now)
    began: list[str] = []

    @tool(concurrency=1)
    async def look(name: str) -> None:
        began.append(name)
        await may_end.wait()
        if fails:
            raise OSError("no such thing")

    @program
    async def looks(ctx: Context, name: str) -> None:
        with suppress(OSError):
            await ctx.tool(look, name=name)

    async with (
        await Journal.open(lambda: SQLiteStore(tmp_path / "j"), machine=machine) as journal,
        Runtime(ScriptedExecutor(), journal=journal) as runtime,
    ):
        runs = [runtime.start(looks, name, durable=Durable()) for name in ("a", "b")]
        while not (began and all(node_of(run, "waiting") for run in runs[1:])):
            await asyncio.sleep(0)
        clock.now += 5.0
        may_end.set()
        for run in runs:
            await run.wait()
    assert began == ["a", "b"]
    with closing(SQLiteStore(tmp_path / "j")) as store:
        first, second = (read_program(store, run.id).pieces() for run in runs)
    assert [(one.reason, one.seconds) for one in first] == [("tool", 5.0)]
    assert [(one.reason, one.seconds) for one in second] == [("turn", 5.0)]


def node_of(run: Run, state: str) -> bool:
    return any(node.state == state for node in run.dag.nodes())


def test_of_branches_the_one_that_ended_last_counts(tmp_path: Path) -> None:
    """1. Two branches; the longer one is what the program waited for. 2. A third one that ended
    earlier, though its parent ended later than that of the longer one, counts nowhere.
    """
    made = Made(10.0)
    made.node("0.0#0", "tool", 0.0, 3.0)
    made.node("0.0#1", "call", 3.0, 8.0, parents=["0.0#0"], report=spent(["decode", 5.0]))
    made.node("0.1#0", "tool", 0.0, 6.0)
    made.node("0.1#1", "tool", 6.0, 7.0, parents=["0.1#0"])
    made.node("0#0", "human", 8.0, 10.0, parents=["0.0#1", "0.1#1"])
    assert made.times(tmp_path / "j") == [
        (3.0, "tool", "0.0#0"),
        (5.0, "decode", "0.0#1"),
        (2.0, "human", "0#0"),
    ]


def test_a_branch_that_waits_for_its_turn_waits_for_the_other(tmp_path: Path) -> None:
    """Two branches share a semaphore: between the parent and the node the other's node counts."""
    made = Made(9.0)
    made.node("0#0", "tool", 0.0, 2.0)
    made.node("0.0#0", "call", 2.0, 5.0, parents=["0#0"], report=spent(["decode", 3.0]))
    made.node("0.1#0", "call", 5.0, 9.0, parents=["0#0"], report=spent(["decode", 4.0]))
    assert made.times(tmp_path / "j") == [
        (2.0, "tool", "0#0"),
        (3.0, "decode", "0.0#0"),
        (4.0, "decode", "0.1#0"),
    ]


def test_who_lost_a_race_is_not_waited_for(tmp_path: Path) -> None:
    """1. It was cancelled after the winner had ended. 2. Where a node's own time was over, its
    cancellation is what the program waited for.
    """
    made = Made(6.0)
    made.node("0.0#0", "tool", 0.0, 3.0)
    made.node("0.1#0", "human", 0.0, 3.5, state="cancelled")
    made.node("0#0", "tool", 3.5, 6.0, parents=["0.0#0"])
    assert made.times(tmp_path / "j")[0] == (3.0, "tool", "0.0#0")
    late = Made(6.0)
    late.node("0#0", "tool", 0.0, 4.0, state="cancelled")
    late.node("0#1", "tool", 4.0, 6.0)
    assert late.times(tmp_path / "k") == [(4.0, "tool", "0#0"), (2.0, "tool", "0#1")]


def test_what_a_tool_does_itself(tmp_path: Path) -> None:
    made = Made(6.0)
    made.node("0#0", "tool", 0.0, 6.0)
    made.node("0#0.0#0", "call", 2.0, 5.0, report=spent(["decode", 3.0]))
    assert made.times(tmp_path / "j") == [
        (2.0, "tool", "0#0"),
        (3.0, "decode", "0#0.0#0"),
        (1.0, "tool", "0#0"),
    ]


def test_a_program_that_still_runs(tmp_path: Path) -> None:
    """Up to its last row: what is open then, and began last, is what it waits for."""
    made = Made(None)
    made.node("0#0", "tool", 0.0, 2.0)
    made.node("0.0#0", "human", 2.0, None)
    made.node("0.1#0", "tool", 2.0, 5.0)
    made.node("0.1#1", "call", 5.0, None)
    made.node("0.2#0", "tool", 2.0, 7.0)
    recorded = made.read(tmp_path / "j")
    assert (recorded.state, recorded.until) == ("open", BEGAN + 7.0)
    found = [(one.seconds, one.reason) for one in recorded.pieces()]
    assert found == [(2.0, "tool"), (3.0, "tool"), (2.0, "engine")]


def test_a_program_that_was_killed(tmp_path: Path) -> None:
    """1. A call is under way, and lost. 2. Nothing runs for 10 s. 3. Its code runs again, and the
    call too. 4. One that waits for a human when it is killed waits for that human meanwhile.
    """
    made = Made(20.0)
    made.node("0#0", "tool", 0.0, 2.0).node("0#1", "call", 2.0, None)
    made.node("0.1#0", "tool", 0.0, 4.0)
    made.lives(14.0)
    made.node("0#1", "call", 15.0, 20.0, attempt=2, report=spent(["decode", 5.0]))
    assert made.times(tmp_path / "j") == [
        (2.0, "tool", "0#0"),
        (2.0, "engine", "0#1"),
        (10.0, "stopped", ""),
        (1.0, "own code", ""),
        (5.0, "decode", "0#1"),
    ]
    asks = Made(9.0).node("0#0", "human", 1.0, None).lives(7.0)
    asks.node("0#0", "human", 7.0, 9.0, attempt=2)
    reasons = [reason for _, reason, _ in asks.times(tmp_path / "k")]
    assert reasons == ["own code", "human", "human"]


def test_engines_that_say_less(tmp_path: Path) -> None:
    made = Made(6.0).node("0#0", "call", 0.0, 6.0, report=CallReport(waiting_s=2.0, service_s=3.0))
    assert made.times(tmp_path / "j") == [
        (1.0, "starting", "0#0"),
        (2.0, "queued", "0#0"),
        (3.0, "engine", "0#0"),
    ]
    none = Made(6.0).node("0#0", "call", 0.0, 6.0, state="failed")
    assert none.times(tmp_path / "k") == [(6.0, "engine", "0#0")]


def test_causes_are_summed_up(tmp_path: Path) -> None:
    """Programs that were ahead, the one that was for longest first, and how both stood then."""
    a, b = ["a", 0, 0.5], ["b", 1, 2.0]
    spans = spent(["queued", 1.0, 2, 3.0, 0, [a, b]], ["queued", 2.0, 2, 3.0, 0, [b]])
    made = Made(3.0).node("0#0", "call", 0.0, 3.0, report=spans)
    pieces = made.read(tmp_path / "j").pieces()
    assert pieces[0].by == (Cause("a", 0, 0.5), Cause("b", 1, 2.0))
    (share,) = shares_of(pieces)
    told = [(one.program, one.seconds, one.level, one.own_level) for one in share.by]
    assert told == [("b", 3.0, 1, 2), ("a", 1.0, 0, 2)]


def test_accounts_that_cannot_be_read(tmp_path: Path) -> None:
    made = Made(3.0).node("0#0", "call", 0.0, 3.0, report=CallReport(spans=[["decode"]]))
    with pytest.raises(JournalError, match="record of node 0#0 of run p-1"):
        made.read(tmp_path / "j").pieces()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 30), st.booleans())
def test_the_reasons_sum_up(
    tmp_path_factory: pytest.TempPathFactory, seed: int, nodes: int, ended: bool
) -> None:
    """Random nodes, some open, cancelled or inside of others; the process was killed or not."""
    rng, made = random.Random(seed), Made(100.0 if ended else None)
    places: list[tuple[str, float]] = []
    halves = [(0.0, 100.0)] if rng.random() < 0.5 else [(0.0, 40.0), (60.0, 100.0)]
    for life, (since, until) in enumerate(halves):
        if life:
            made.lives(since)
        for number in range(nodes):
            began = rng.uniform(since, until)
            over = None if rng.random() < 0.1 else rng.uniform(began, until)
            kind = rng.choice(["call", "call", "tool", "human", "sleep", "value"])
            before = [place for place, at in places if at <= began]
            inside = rng.choice(places)[0] if places and rng.random() < 0.1 else "0"
            place = f"{inside}.{rng.randint(0, 3)}#{life}{number}"
            spans = [[rng.choice(REASONS), rng.uniform(0, 30)] for _ in range(rng.randint(0, 4))]
            made.node(
                place, kind, began, over,
                parents=rng.sample(before, min(len(before), 2)),
                state=rng.choice(["done", "done", "done", "failed", "cancelled"]),
                report=spent(*spans) if kind == "call" else None,
            )  # fmt: skip
            if over is not None:
                places.append((place, over))
    recorded = made.read(tmp_path_factory.mktemp("j") / f"{next(FILES)}")
    pieces = recorded.pieces()
    wall = recorded.until - recorded.since
    assert sum(share.seconds for share in shares_of(pieces)) == pytest.approx(wall, rel=0.01)
    assert all(piece.reason in ALL_REASONS and piece.seconds > 0 for piece in pieces)
    assert all(one.until == other.since for one, other in pairwise(pieces))
    if pieces:
        assert (pieces[0].since, pieces[-1].until) == (recorded.since, recorded.until)
