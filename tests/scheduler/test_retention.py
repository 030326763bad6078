"""Which cached blocks are evicted first, and what is known of their owners: events in, an order
out.
"""

from __future__ import annotations

import math
import random

import pytest

from agentrt.errors import ConfigError
from agentrt.scheduler import EngineProgram, QueuedCall
from agentrt.scheduler import owners as module
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.learned.durations import Forecast
from agentrt.scheduler.retention import (
    BETWEEN,
    HUMAN,
    SESSION,
    EvictionOrder,
    Retention,
    make_retention,
    returns,
)
from agentrt.scheduler.state import CachedBlocks
from tests.scheduler.book import Book


@pytest.fixture
def book() -> Book:
    return Book()


def waits_for(blocks: CachedBlocks) -> tuple[str | None, float]:
    return blocks.gap, blocks.since


def test_lru_replaces_nothing_and_other_names_are_refused() -> None:
    assert make_retention(SchedulerConfig(retention="lru"), Learned()) is None
    with pytest.raises(ConfigError, match=r"retention 'mru'; available: lru, ttl, cost"):
        SchedulerConfig(retention="mru")
    with pytest.raises(ConfigError, match="retention_ttl must be positive seconds"):
        SchedulerConfig(retention_ttl=0)
    assert SchedulerConfig(retention_ttl=0.5, stale_after_s=0.5).retention_ttl == 0.5


# -- what a program waits for ----------------------------------------------------------


def test_between_two_calls_only_the_time_is_known(book: Book) -> None:
    blocks = book.called("p", 10.0)
    assert (blocks.tenant, blocks.type, waits_for(blocks)) == ("acme", "a", (BETWEEN, 10.0))
    assert book.call("p", 14.0) is blocks
    assert book.gaps() == [(BETWEEN, 4.0)]
    assert waits_for(blocks) == (None, 14.0)


def test_a_program_waits_after_the_end_of_its_last_call(book: Book) -> None:
    blocks = book.call("p", 1.0)
    assert not blocks.branches
    assert book.call("p", 1.0) is blocks
    assert (blocks.branches, blocks.calling) == (True, True)
    book.over("p", 2.0)
    assert waits_for(blocks)[0] is None
    book.over("p", 3.0)
    assert (waits_for(blocks), blocks.calling) == ((BETWEEN, 3.0), False)
    assert book.changed == [blocks] * 4


def test_the_last_of_several_tools_brings_the_program_back(book: Book) -> None:
    blocks = book.called("p", 0.0)
    for _ in range(2):
        book.begins("p", "grep", 1.0)
    book.call("p", 2.0)  # one that the tools do not end
    assert waits_for(blocks) == ("grep", 1.0)
    book.over("p", 2.5)
    book.answered("p", "tool", 3.0)
    assert waits_for(blocks) == ("grep", 1.0)
    book.answered("p", "tool", 5.0)
    assert waits_for(blocks) == (None, 5.0)
    assert book.changed == [blocks] * 7
    assert book.gaps() == [("grep", 4.0)]
    assert returns(book.learned, blocks, 9.0) == Forecast(1.0, 0.05), "its call is on its way"


def test_events_of_unknown_programs_do_no_harm(book: Book) -> None:
    row = EngineProgram("nobody", "a")
    book.owners.interrupt_started(row, "tool", "grep", 0.0)
    book.owners.interrupt_ended(row, 1.0)
    book.owners.call_finished(QueuedCall("c", row, None, None, 0.0), 2.0)
    book.owners.program_ended(row, 3.0)
    alone = EngineProgram("alone", "a", lone=True)
    book.owners.call_arrived(QueuedCall("d", alone, None, None, 0.0), 0.0)
    assert row.cached is alone.cached is None
    assert (book.changed, book.gaps()) == ([], [])


# -- ends and sessions -----------------------------------------------------------------


def test_an_end_releases_blocks_and_a_session_keeps_them(book: Book) -> None:
    alone, first = book.called("alone", 0.0), book.called("turn-1", 0.0, session="chat")
    assert book.end("alone", 1.0) is alone
    assert alone.released
    book.end("turn-1", 2.0)
    assert (first.released, first.rows, waits_for(first)) == (False, {}, (SESSION, 2.0))
    assert book.changed[-2:] == [alone, first]
    assert book.call("turn-2", 60.0, "chat") is first
    assert list(first.rows) == [book.rows["turn-2"]]
    known = book.learned.gaps.at(("acme", "a", BETWEEN), 0)
    assert known is not None
    assert known.well.value == 0.0, "both programs ended in that gap"
    assert book.gaps()[-1] == (SESSION, 58.0)


def test_a_call_that_outlives_its_program_changes_nothing(book: Book) -> None:
    blocks = book.call("p", 0.0, session="chat")
    row = book.rows["p"]
    book.end("p", 1.0)
    book.owners.call_finished(row.queued.popitem()[1], 2.0)
    assert (waits_for(blocks), row.cached, len(book.owners)) == ((SESSION, 1.0), None, 1)


def test_a_session_is_a_tenants_own(book: Book) -> None:
    ours = book.called("p", 0.0, session="chat")
    book.end("p", 1.0)
    other = EngineProgram("q", "a", "other", session="chat")
    assert book.owners.own(other) is not ours
    assert book.called("chat", 2.0) is not ours


def test_two_programs_of_a_session_have_its_blocks_together(book: Book) -> None:
    """For example, the end of a program may arrive after the first call of the next program."""
    first, second = (book.called(name, 0.0, session="chat") for name in "ab")
    assert first is second
    book.end("a", 1.0)
    assert (first.released, list(first.rows), len(book.owners)) == (False, [book.rows["b"]], 0)
    assert waits_for(first) == (BETWEEN, 0.0)
    book.end("b", 2.0)
    assert (first.released, first.rows, len(book.owners)) == (False, {}, 1)
    assert waits_for(first) == (SESSION, 2.0)


def test_shared_blocks_of_too_many_types_are_dropped(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_KINDS", 2)
    first, *others = (book.owners.shared(f"type {number}") for number in range(3))
    assert (first.released, [one.released for one in others]) == (True, [False, False])
    assert book.changed[-1] is first


def test_the_longest_idle_session_is_dropped(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KINDS", 2)
    first, second, third = (book.called(name, 0.0, session=f"of {name}") for name in "abc")
    for name in "ab":
        book.end(name, 1.0)
    book.called("d", 2.0, session="of a")
    book.end("d", 2.0)
    book.end("c", 5.0)
    assert [one.released for one in (first, second, third)] == [False, True, False]
    assert second in book.changed[-2:]
    assert len(book.owners) == 2


def test_sharers_are_the_live_programs_of_the_type(book: Book) -> None:
    for name in "abc":
        book.called(name, 0.0)
    book.called("a", 1.0)
    book.called("x", 1.0, type="other")
    assert book.owners.sharers("a") == 3
    book.end("b", 2.0)
    assert (book.owners.sharers("a"), book.owners.sharers("none")) == (2, 0)
    shared = book.owners.shared("a")
    assert shared is book.owners.shared("a") is not book.owners.shared("other")
    assert not shared.released


def test_a_cleared_cache_is_forgotten(book: Book) -> None:
    idle, live = book.called("a", 0.0, session="s"), book.called("b", 0.0)
    book.end("a", 1.0)
    for blocks in (idle, live):
        blocks.chains.append(bytearray(8))
    book.owners.forget_chains([*book.rows.values(), EngineProgram("never called", "a")])
    assert [len(idle.chains), len(live.chains)] == [0, 0]


# -- the order -------------------------------------------------------------------------


def test_idle_sessions_are_evicted_first_then_programs_outside_then_the_least_valuable(
    book: Book,
) -> None:
    late, early, outside, idle, soon = (
        book.called(name, at, session=name)
        for name, at in (("late", 9.0), ("early", 1.0), ("out", 8.0), ("idle", 8.0), ("soon", 9.0))
    )
    book.end("idle", 9.5)
    book.rows["out"].resident = False
    calls = book.call("calls", 0.0)
    book.begins("early", HUMAN, 1.0)
    book.begins("soon", "grep", 9.9)
    found = book.order(10.0, calls, soon, late, early, outside, idle)
    assert found == [idle, outside, early, late, soon, calls]


@pytest.mark.parametrize("gap", [HUMAN, SESSION])
def test_humans_and_sessions_are_not_expected_without_samples(book: Book, gap: str) -> None:
    blocks = CachedBlocks("a", "acme", gap=gap)
    book.learned.gaps.learn(("acme", "a", ""), 1.0)
    assert returns(book.learned, blocks, 3.0).seconds == math.inf
    for _ in range(8):
        assert returns(book.learned, blocks, 3.0).seconds == math.inf
        book.learned.gaps.learn(("acme", "a", gap), 30.0)
    assert returns(book.learned, blocks, 0.0).seconds < 30.0
    for _ in range(8):
        book.learned.gaps.learn(("acme", "quick", gap), 0.01)
    quick = CachedBlocks("quick", "acme", gap=gap)
    assert returns(book.learned, quick, 0.0).seconds < 1.0


def test_branches_and_shared_blocks_are_worth_less_the_longer_they_are_unused(book: Book) -> None:
    retention = book.retention
    chain, branching = book.call("chain", 9.0), book.call("branching", 9.0)
    assert book.call("branching", 10.0) is branching
    shared = book.owners.shared("a")
    for blocks in (branching, shared):
        blocks.oldest = 10.0
        assert [retention.worth(blocks, at, 3) for at in (10.0, 14.0)] == [
            (3.0 if blocks.shared else 1.0) / seconds for seconds in (0.05, 4.0)
        ]
    assert retention.worth(shared, 14.0, 0) == 1 / 4.0
    assert retention.worth(branching, 10.0, 3) == retention.worth(chain, 99.0, 3)
    assert book.order(20.0, chain, shared, branching) == [branching, shared, chain]


def test_an_owner_that_changes_its_place_is_moved() -> None:
    book = Book()
    order = EvictionOrder(book.retention, book.owners.sharers)
    first, second = book.called("a", 0.0), book.called("b", 5.0)
    for blocks in (first, second):
        order.put(blocks)
    assert (order.first(6.0), [*order.in_order(6.0)]) == (first, [first, second])
    book.rows["b"].resident = False
    order.put(second)
    assert (order.first(6.0), [*order.in_order(6.0)]) == (second, [second, first])
    book.rows["b"].resident = True
    order.put(second)
    assert (order.first(6.0), [*order.in_order(6.0)]) == (first, [first, second])
    order.clear()
    assert (order.first(6.0), [*order.in_order(6.0)]) == (None, [])


class ByValue(Retention):
    """The order of known values: owners below 0.5 keep their place, and the others change."""

    name = "by-value"
    values: dict[CachedBlocks, float]
    asked = 0

    def place(self, blocks: CachedBlocks) -> tuple[float, ...] | None:
        self.asked += 1
        value = self.values[blocks]
        return (value,) if value < 0.5 else None

    def worth(self, blocks: CachedBlocks, now: float, sharers: int) -> float:
        return self.values[blocks]


def test_the_order_is_a_sort_under_random_changes() -> None:
    rng = random.Random(1)
    retention = ByValue(SchedulerConfig(), Learned())
    values = retention.values = {}
    order = EvictionOrder(retention, lambda type: 0)
    owners, known = [CachedBlocks(str(n)) for n in range(12)], set[CachedBlocks]()
    for step in range(2000):
        blocks = rng.choice(owners)
        values[blocks] = rng.random()
        if rng.random() < 0.7 or blocks in known:
            order.put(blocks)
            known.add(blocks)
        if rng.random() < 0.2:
            order.discard(blocks)
            known.discard(blocks)
        here = sorted(known, key=lambda one: values[one])
        assert list(order.in_order(float(step))) == here
        assert order.first(float(step)) == (here[0] if here else None)


def test_a_place_is_computed_once_and_only_for_an_eviction() -> None:
    retention = ByValue(SchedulerConfig(), Learned())
    order = EvictionOrder(retention, lambda type: 0)
    first, second, gone = (CachedBlocks(name) for name in "abc")
    retention.values = {first: 0.3, second: 0.4, gone: 0.0}
    for _ in range(5):
        for blocks in (first, second, gone):
            order.put(blocks)
    order.discard(gone)
    assert retention.asked == 0
    assert [order.first(0.0), order.first(0.0)] == [first] * 2
    assert retention.asked == 2


def test_owners_with_equal_places_are_ordered_by_their_last_change() -> None:
    retention = ByValue(SchedulerConfig(), Learned())
    order = EvictionOrder(retention, lambda type: 0)
    first, second = CachedBlocks("a"), CachedBlocks("b")
    retention.values = {first: 0.3, second: 0.3}
    for blocks in (first, second, first):
        order.put(blocks)
    assert list(order.in_order(0.0)) == [second, first]
