"""Answers come in the order that they had, and as far apart as the code behind them needs."""

from __future__ import annotations

import asyncio
import random

import pytest

from agentrt.journal import order as order_module
from agentrt.journal.order import Begun, Ended, Order, group_of, lived_seconds, place_of


async def answered(order: Order, node: str, seen: list[str]) -> None:
    order.entered(node)
    await order.answer(node)
    seen.append(node)


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_asks_first_the_order_is_that_of_the_record(seed: int) -> None:
    rng = random.Random(seed)
    places = sorted(rng.sample(range(1, 100), 12))
    order = Order(ended=[Ended(str(place), place, 0.0) for place in places])
    seen: list[str] = []

    async def answer(place: int) -> None:
        for _ in range(rng.randint(0, 5)):
            await asyncio.sleep(0)
        await answered(order, str(place), seen)

    async def something_new() -> None:
        await order.deliver(order.last + 1)
        seen.append("new")

    shuffled = rng.sample(places, len(places))
    await asyncio.gather(something_new(), *map(answer, shuffled))
    assert seen == [*map(str, places), "new"]
    assert order.now == places[-1] + 1


async def test_a_group_comes_in_one_turn_and_groups_are_apart() -> None:
    """Who is told first has gone on, as far as it gets, before the next group comes."""
    ends = [Ended("a", place_of(1, 1), 0.0), Ended("b", place_of(1, 2), 0.0)]
    order = Order(ended=[*ends, Ended("c", place_of(2, 3), 0.0)])
    turns, at = 0, dict[str, int]()

    async def counts() -> None:
        nonlocal turns
        while len(at) < 3:
            turns += 1
            await asyncio.sleep(0)

    async def waits(node: str) -> None:
        await order.answer(node)
        at[node] = turns

    await asyncio.gather(counts(), *map(waits, "cba"))
    assert at["a"] == at["b"]
    assert at["c"] - at["a"] >= order_module.QUIET_TURNS


async def test_an_answer_waits_for_what_had_happened_before_it() -> None:
    order = Order([Begun("x", 1)], [Begun("y", 1)], [Ended("a", 1, 0.0), Ended("b", 2, 0.0)])
    seen: list[str] = []
    tasks = [asyncio.create_task(answered(order, node, seen)) for node in "ab"]
    await tasks[0]
    for happens in (order.entered, order.ended_by_code):
        for _ in range(100):
            await asyncio.sleep(0)
        assert seen == ["a"]
        happens("x" if happens == order.entered else "y")
    await tasks[1]
    assert seen == ["a", "b"]


async def test_nothing_comes_while_the_program_moves() -> None:
    order = Order(ended=[Ended("a", 1, 0.0)])
    moving, asked = True, 0

    def waits() -> bool:
        nonlocal asked
        asked += 1
        return not moving

    order.waits = waits
    task = asyncio.create_task(order.answer("a"))
    while asked < 50:
        await asyncio.sleep(0)
    assert not task.done()
    moving = False
    await task


async def test_a_program_that_only_yields_is_not_waited_for() -> None:
    order = Order(ended=[Ended("a", 1, 0.0)])
    order.waits = lambda: False
    await order.answer("a")


async def test_a_program_of_one_task_waits_for_no_turn() -> None:
    order = Order([Begun("a", 0), Begun("b", 1)], [], [Ended("a", 1, 0.0), Ended("b", 2, 0.0)])
    order.is_alone = lambda: True

    async def goes_on() -> None:
        for node in "ab":
            order.entered(node)
            await order.answer(node)
        for group in (3, 4):
            await order.deliver(group)

    with pytest.raises(StopIteration):  # at once: it is never suspended
        goes_on().send(None)


async def test_new_answers_are_apart_where_there_are_several_tasks() -> None:
    order, seen = Order(), list[int]()

    async def waits(group: int) -> None:
        await order.deliver(group)
        seen.append(group)

    tasks = [asyncio.create_task(waits(group)) for group in (1, 1, 2, 2)]
    await asyncio.sleep(0)
    assert seen == [1, 1]
    await asyncio.gather(*tasks)
    assert seen == [1, 1, 2, 2]


async def test_where_the_next_one_does_not_come_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(order_module, "SLACK_S", 0.001)
    ends = [Ended(str(place), place, 0.0) for place in (1, 2, 3)]
    order, seen = Order([Begun("x", 1)], [], ends), list[str]()
    await asyncio.gather(answered(order, "3", seen), order.deliver(4))
    assert seen == ["3"]


async def test_one_that_will_never_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "SLACK_S", 3600.0)
    order = Order(ended=[Ended("a", 1, 0.0), Ended("b", 2, 0.0), Ended("c", 3, 0.0)])
    waiting = asyncio.create_task(order.answer("c"))
    cancelled = asyncio.create_task(order.answer("b"))
    await asyncio.sleep(0)
    order.drop("a")
    cancelled.cancel()
    await waiting
    order.close()


async def test_an_answer_that_is_made_again_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "SLACK_S", 0.001)
    order, seen = Order(ended=[Ended("a", 1, 0.0), Ended("b", 2, 0.0)]), list[str]()
    order.runs_again("a")
    later = asyncio.create_task(answered(order, "b", seen))
    await asyncio.sleep(0.05)
    assert seen == []
    await answered(order, "a", seen)
    await later
    assert seen == ["a", "b"]


def test_ends_of_older_journals_are_groups_of_their_own() -> None:
    assert [group_of(place) for place in (1, 2, 7)] == [1, 2, 7]
    assert group_of(place_of(7, 5)) == 7
    assert place_of(7, 5) < place_of(7, 6) < place_of(8, 1)


def test_pauses_between_lives_do_not_count() -> None:
    times = lived_seconds([100.0, 500.0, 900.0], [103.0, 501.0, 110.0, 905.0])
    assert times == {103.0: 3.0, 110.0: 10.0, 501.0: 11.0, 905.0: 16.0}
    assert lived_seconds([100.0], [50.0, 90.0]) == {50.0: 0.0, 90.0: 0.0}
