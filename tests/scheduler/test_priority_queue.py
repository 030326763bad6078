"""The priority queue whose items move and leave, beside a list that is sorted each time."""

from __future__ import annotations

import weakref
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler.priority_queue import PriorityQueue
from tests.lines import lines_run

events = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "discard", "pop", "look"]),
        st.integers(0, 12),
        st.integers(0, 5),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(events)
def test_a_priority_queue_is_in_order(story: list[tuple[str, int, int]]) -> None:
    queue, places = PriorityQueue[int](), dict[int, tuple[int, int]]()
    for turn, (event, item, key) in enumerate(story):
        expected = sorted(places, key=places.__getitem__)
        if event == "put":
            queue.put(item, key)
            places[item] = (key, turn)
        elif event == "discard":
            assert queue.discard(item) is (places.pop(item, None) is not None)
        elif event == "pop" and expected:
            assert queue.pop() == expected[0]
            del places[expected[0]]
        elif event == "look":
            assert list(queue) == expected
        expected = sorted(places, key=places.__getitem__)
        assert queue.first() == (expected[0] if expected else None)
        assert queue.first_key() == (places[expected[0]][0] if expected else None)
        assert (len(queue), item in queue) == (len(expected), item in places)
    assert list(queue) == sorted(places, key=places.__getitem__)


def test_moved_and_discarded_items_do_not_slow_down_the_look_at_the_first_few() -> None:
    """Also behind an item that stays first, as a program does that does not fit into the cache."""
    queue = PriorityQueue[int]()
    for item in range(1000):
        queue.put(item, item)
    before = lines_run(lambda: look_at(queue, 8))
    for item in range(1, 500):
        queue.discard(item)
    for item in range(500, 900):
        queue.put(item, 1000 + item)
    assert lines_run(lambda: look_at(queue, 8)) == before


def test_a_discarded_item_is_released() -> None:
    queue, item = PriorityQueue[Thing](), Thing()
    queue.put(Thing(), 0)
    queue.put(item, 1)
    queue.put(item, 2)
    queue.discard(item)
    alive = weakref.ref(item)
    del item
    assert alive() is None


class Thing:
    """An item without an order."""


def look_at(queue: PriorityQueue[int], most: int) -> None:
    assert len(list(islice(queue, most))) == most


def test_equal_items_keep_their_order_of_insertion() -> None:
    queue = PriorityQueue[str]()
    for item in "abc":
        queue.put(item, 0.0)
    queue.put("a", 0.0)
    assert [queue.pop() for _ in range(len(queue))] == ["b", "c", "a"]


def test_the_first_few_in_order_cost_no_sort_of_all() -> None:
    queue = PriorityQueue[int]()
    for item in range(1000):
        queue.put(item, Counted(item))
    Counted.compared = 0
    first = iter(queue)
    assert [next(first) for _ in range(8)] == list(range(8))
    assert Counted.compared < 100


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)
