"""The heap whose items move and leave, against a list that is sorted anew each time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrt.scheduler.heap import Heap

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
def test_a_heap_is_a_sorted_list(story: list[tuple[str, int, int]]) -> None:
    heap, places = Heap[int](), dict[int, tuple[int, int]]()
    for turn, (event, item, key) in enumerate(story):
        expected = sorted(places, key=lambda one: places[one])
        if event == "put":
            heap.put(item, key)
            places[item] = (key, turn)
        elif event == "discard":
            assert heap.discard(item) is (places.pop(item, None) is not None)
        elif event == "pop" and expected:
            assert heap.pop() == expected[0]
            del places[expected[0]]
        elif event == "look":
            assert list(heap) == expected
        expected = sorted(places, key=lambda one: places[one])
        assert heap.first() == (expected[0] if expected else None)
        assert heap.first_key() == (places[expected[0]][0] if expected else None)
        assert (len(heap), item in heap) == (len(expected), item in places)
    assert list(heap) == sorted(places, key=lambda one: places[one])


def test_outdated_entries_are_dropped() -> None:
    """Also where it never comes up: behind an item that stays the first."""
    heap = Heap[int]()
    heap.put(0, 0)
    for turn in range(100):
        heap.put(1 + turn % 4, 1000 + turn)
        assert len(heap._entries) <= 3 * len(heap)
    for item in range(1, 5):
        heap.discard(item)
        assert len(heap._entries) <= 3 * len(heap)
    assert list(heap) == [0]


def test_equal_items_keep_their_order_of_insertion() -> None:
    heap = Heap[str]()
    for item in "abc":
        heap.put(item, 0.0)
    heap.put("a", 0.0)
    assert [heap.pop() for _ in range(len(heap))] == ["b", "c", "a"]


def test_the_first_few_in_order_cost_no_sort_of_all() -> None:
    heap = Heap[int]()
    for item in range(1000):
        heap.put(item, Counted(item))
    Counted.compared = 0
    first = iter(heap)
    assert [next(first) for _ in range(8)] == list(range(8))
    assert Counted.compared < 100


class Counted(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)
