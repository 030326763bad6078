"""The index of what replicas hold, against sets; and streams of notes that lose some."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrt.errors import InvariantError
from agentrt.router.dispatch import ReplicaBlockIndex, common
from agentrt.router.kv_events import KVEventBatch, KVEventStream, short

REPLICAS = 3
CHAINS = [[100 * family + depth for depth in range(8)] for family in range(3)]
# Two families share their first three blocks, as programs of a type do.
CHAINS[1][:3] = CHAINS[0][:3]
BLOCKS = sorted({block for chain in CHAINS for block in chain})


def leading(held: set[int], chain: list[int]) -> int:
    count = 0
    while count < len(chain) and chain[count] in held:
        count += 1
    return count


class Engine:
    """A cache that holds beginnings of chains, and tells what it stores and removes."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.number = 0

    def store(self, chain: list[int], count: int) -> KVEventBatch:
        new = [block for block in chain[:count] if block not in self.held]
        self.held.update(new)
        return self.note(new, [])

    def evict(self, chain: list[int], count: int) -> KVEventBatch:
        """The end of a chain from ``count`` on, as far as no other chain continues there."""
        others = [c for c in CHAINS if c is not chain]
        gone = [
            block
            for place, block in enumerate(chain)
            if place >= count and block in self.held
            if not any(block in c and leading(self.held, c) > c.index(block) + 1 for c in others)
        ]
        self.held.difference_update(gone)
        return self.note([], gone)

    def note(self, stored: list[int], removed: list[int]) -> KVEventBatch:
        self.number += 1
        return KVEventBatch.of(self.number, stored, removed)

    def snapshot(self) -> KVEventBatch:
        return KVEventBatch.of(self.number, self.held, whole=True)


class Told(RuleBasedStateMachine):
    """Engines tell, notes are lost or late, and a reader asks whenever it has missed one.

    Whenever nothing is missing, the index is what the engines hold, by every measure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.index = ReplicaBlockIndex()
        self.engines = [Engine() for _ in range(REPLICAS)]
        self.streams = [KVEventStream() for _ in range(REPLICAS)]
        self.on_the_way: list[tuple[int, KVEventBatch]] = []
        for number in range(REPLICAS):
            assert self.index.join() == number

    def tell(self, replica: int, note: KVEventBatch) -> None:
        for ready in self.streams[replica].take(KVEventBatch.from_wire(note.to_wire())):
            if ready.whole:
                self.index.replace(replica, ready.stored)
            else:
                self.index.remove(replica, ready.removed)
                self.index.store(replica, ready.stored)

    @rule(replica=st.integers(0, REPLICAS - 1), chain=st.sampled_from(CHAINS), n=st.integers(1, 8))
    def stores(self, replica: int, chain: list[int], n: int) -> None:
        self.on_the_way.append((replica, self.engines[replica].store(chain, n)))

    @rule(replica=st.integers(0, REPLICAS - 1), chain=st.sampled_from(CHAINS), n=st.integers(0, 7))
    def evicts(self, replica: int, chain: list[int], n: int) -> None:
        self.on_the_way.append((replica, self.engines[replica].evict(chain, n)))

    @rule(replica=st.integers(0, REPLICAS - 1))
    def is_cleared(self, replica: int) -> None:
        engine = self.engines[replica]
        engine.held.clear()
        engine.number += 1
        self.on_the_way.append((replica, engine.snapshot()))

    @precondition(lambda self: self.on_the_way)
    @rule(place=st.integers(0, 99), copies=st.integers(0, 2))
    def arrives(self, place: int, copies: int) -> None:
        """Any note, in any order: once, twice or never."""
        replica, note = self.on_the_way.pop(place % len(self.on_the_way))
        for _ in range(copies):
            self.tell(replica, note)

    @rule(replica=st.integers(0, REPLICAS - 1))
    def dies(self, replica: int) -> None:
        self.engines[replica] = Engine()
        self.streams[replica].forget()
        self.index.clear(replica)
        self.on_the_way = [(r, note) for r, note in self.on_the_way if r != replica]

    @rule(replica=st.integers(0, REPLICAS - 1))
    def is_asked(self, replica: int) -> None:
        if self.streams[replica].gap:
            self.tell(replica, self.engines[replica].snapshot())
            assert not self.streams[replica].gap

    @invariant()
    def is_right_where_nothing_is_missing(self) -> None:
        self.index.check_integrity()
        for replica, (engine, stream) in enumerate(zip(self.engines, self.streams, strict=True)):
            if not stream.gap and stream.number == engine.number:
                assert self.index.blocks(replica) == engine.held
                for chain in CHAINS:
                    assert self.index.match(chain)[replica] == leading(engine.held, chain)


TestTold = Told.TestCase
TestTold.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(CHAINS), st.integers(0, 8)), max_size=30)
)
def test_the_index_is_the_sets(stores: list[tuple[int, list[int], int]]) -> None:
    """With as many replicas as you like, each its own beginnings of chains."""
    index, sets = ReplicaBlockIndex(), [set[int]() for _ in range(6)]
    for replica in sets:
        index.join()
        replica.clear()
    for number, chain, count in stores:
        index.store(number, chain[:count])
        sets[number].update(chain[:count])
    for chain in CHAINS:
        assert index.match(chain) == [leading(held, chain) for held in sets]
        assert index.match(chain, 16) == [16 * leading(held, chain) for held in sets]
        assert index.match(chain, 16, 100) == [min(16 * leading(h, chain), 100) for h in sets]
    assert index.match([]) == [0] * 6
    assert len(index) == len(set().union(*sets))


def test_what_a_replica_never_had_may_be_evicted() -> None:
    index = ReplicaBlockIndex()
    assert index.match([1, 2]) == []
    first, second = index.join(), index.join()
    index.store(first, [7])
    index.remove(second, [7, 8])
    assert (len(index), index.blocks(first), index.blocks(second)) == (1, {7}, set())


@pytest.mark.parametrize("holders", [0, 0b100, 0b101])
def test_integrity_sees_a_block_of_no_replica(holders: int) -> None:
    index = ReplicaBlockIndex()
    index.join()
    index.join()
    index.store(1, [10])
    index.check_integrity()
    index._holders[11] = holders
    with pytest.raises(InvariantError, match=f"block b has the replica mask {holders:#b};"):
        index.check_integrity()


@given(st.sets(st.sampled_from(BLOCKS)), st.sampled_from(CHAINS))
def test_a_hole_makes_the_answer_too_high_at_most(held: set[int], chain: list[int]) -> None:
    """It ends where something is missing, never before the first hole."""
    index = ReplicaBlockIndex()
    index.join()
    index.store(0, held)
    found = index.match(chain)[0]
    assert found >= leading(held, chain)
    assert found == 0 or chain[found - 1] in held
    assert found == len(chain) or chain[found] not in held


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))
def test_what_two_prompts_have_in_common(shared: int, one: int, other: int) -> None:
    rng = Random(f"{shared}/{one}/{other}")
    first, rest, others = (
        [rng.getrandbits(64) for _ in range(count)] for count in (shared, one, other)
    )
    assert common([*first, *rest], [*first, *others]) == shared


def test_a_block_is_known_by_the_first_64_bits_of_its_hash() -> None:
    assert short(bytes(range(32))) == 0x0001020304050607


def test_a_hole_of_many_batches_is_not_waited_for() -> None:
    """1. At most 64 are kept while an earlier one is missing, the newest. 2. It counts all."""
    stream = KVEventStream()
    stream.take(KVEventBatch.of(0, [], whole=True))
    for number in range(2, 100):
        assert stream.take(KVEventBatch.of(number, [number])) == []
    first = KVEventBatch.of(35, [35], whole=True)
    ready = stream.take(first)
    assert [batch.number for batch in ready] == [35, *range(36, 100)]
    stream.forget()
    assert (stream.number, stream.gap) == (-1, True)
    assert stream.take(KVEventBatch.of(3, [1])) == []


def test_a_gap_is_seen_and_healed() -> None:
    """1. At first everything is missing. 2. A lost note is noticed when the next one comes.
    3. A snapshot heals it, and what was on its way before the snapshot does no harm.
    """
    stream = KVEventStream()
    assert stream.gap
    assert stream.take(KVEventBatch.of(0, [1], whole=True))
    assert not stream.gap
    late = KVEventBatch.of(3, [3])
    assert stream.take(late) == []
    assert stream.gap
    whole = KVEventBatch.of(4, [1, 3, 4], whole=True)
    assert stream.take(whole) == [whole]
    assert not stream.gap
    assert stream.take(KVEventBatch.of(2, [2])) == []
    assert stream.take(late) == []
    assert (stream.number, stream.gap) == (4, False)
