"""Recorded answers come in the order that they had, as far as their nodes come at all."""

from __future__ import annotations

import asyncio
import random

import pytest

from agentrt.journal import past
from agentrt.journal.past import Past, PastNode, Turns
from agentrt.journal.schema import EndRow, StartRow


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_asks_first_the_order_is_that_of_the_record(seed: int) -> None:
    rng = random.Random(seed)
    places = sorted(rng.sample(range(100), 12))
    turns, order = Turns(places), list[int]()

    async def answer(place: int) -> None:
        for _ in range(rng.randint(0, 5)):
            await asyncio.sleep(0)
        await turns.wait(place)
        order.append(place)
        turns.answered(place)

    async def something_new() -> None:
        await turns.wait()
        order.append(1000)

    shuffled = rng.sample(places, len(places))
    await asyncio.gather(something_new(), *map(answer, shuffled))
    assert order == [*places, 1000]


async def test_where_the_next_one_does_not_come_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(past, "STALL_S", 0.001)
    turns = Turns([1, 2, 3])
    await turns.wait(3)
    await turns.wait()


async def test_one_that_will_never_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "STALL_S", 3600.0)
    turns = Turns([1, 2])
    waiting = asyncio.create_task(turns.wait(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    turns.answered(1)
    await waiting


def test_what_is_further_in_a_task() -> None:
    """A task's own nodes and tasks from here on, with all that is inside of them."""
    places = ["0#1", "0#2", "0#2#0", "0#2.1", "0#10", "0.1#0", "0.2#0", "0.2.5#1", "0!mark", "01#9"]
    known = Past(
        {
            place: PastNode(StartRow("p", place, 1, "call", "llm", "", "", "", "", 0.0), 0.0)
            for place in places
        }
    )
    assert known.is_behind("0", 10, 9)
    assert not known.is_behind("0", 11, 3)
    gone = [row.node for row in known.forget_after("0", 2, 2)]
    assert gone == ["0#2", "0#2#0", "0#2.1", "0#10", "0.2#0", "0.2.5#1"]
    assert known.take("0#2") is None
    assert known.take("0#1") is not None


def test_a_node_is_as_its_last_attempt_left_it() -> None:
    def start(attempt: int, at: float) -> StartRow:
        return StartRow("p", "0#0", attempt, "call", "llm", "", "", "", "", at)

    end = EndRow("p", "0#0", 1, "done", 1, "1", "", "", 5.0).marked()
    found = past.nodes_of("j", [start(2, 7.0), start(1, 3.0)], [end])["0#0"]
    assert (found.state, found.first, found.start.attempt) == ("open", 3.0, 2)
    assert past.nodes_of("j", [start(1, 3.0)], [end])["0#0"].state == "done"
