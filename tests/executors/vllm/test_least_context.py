"""Which owner loses its blocks next is decided anew after everything that may change it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrt.executors.vllm._compat.pool import FreeKVCacheBlockQueue, KVCacheBlock
from agentrt.executors.vllm.engine_core.block_retention import ProtectedFreeQueue
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.learned import Learned
from agentrt.scheduler.retention import EvictionOrder, Retention
from agentrt.scheduler.state import CachedBlocks

BLOCKS = 4


class ByRank(Retention):
    """A retention that orders owners by the ranks of a test."""

    name = "by-rank"
    three: Three

    def place(self, blocks: CachedBlocks) -> None:
        return None

    def worth(self, blocks: CachedBlocks, now: float, sharers: int) -> float:
        return self.three.rank(blocks, now)


class Three:
    """Owners of four free blocks each, which lose them in order of ``ranks``; one comes late."""

    def __init__(self) -> None:
        self.by_age = False
        self.blocks = [KVCacheBlock(at) for at in range(3 * BLOCKS)]
        retention = ByRank(SchedulerConfig(), Learned())
        retention.three = self
        names = ("least", "other", "late")
        self.owners = {name: CachedBlocks(name, shared=True) for name in names}
        self.ranks = {"late": 0.0, "least": 1.0, "other": 2.0}
        self.queue = ProtectedFreeQueue.adopt(
            FreeKVCacheBlockQueue(list(self.blocks)),
            len(self.blocks),
            EvictionOrder(retention, lambda type: 1),
        )
        self.queue.popleft_n(len(self.blocks))
        for name in names:
            self.mark(name)
        self.free("least")
        self.free("other")

    def rank(self, owner: CachedBlocks, now: float) -> float:
        if self.by_age:
            return owner.since
        return self.ranks[owner.type] if now == 0 else -self.ranks[owner.type]

    def of(self, name: str) -> list[KVCacheBlock]:
        at = ("least", "other", "late").index(name) * BLOCKS
        return self.blocks[at : at + BLOCKS]

    def mark(self, name: str) -> None:
        owner = self.owners[name]
        self.queue.mark(self.of(name), owner, lambda: owner)

    def free(self, name: str) -> None:
        self.queue.append_n(self.of(name))

    def prefer(self, name: str) -> None:
        self.ranks[name] = 9.0

    def taken(self) -> str:
        block = self.queue.popleft()
        return next(name for name in self.owners if block in self.of(name))


def _stands_elsewhere(three: Three) -> None:
    three.prefer("least")
    three.queue.changed(three.owners["least"])


def _uses_more(three: Three) -> None:
    three.prefer("least")
    three.mark("late")


def _time_passes(three: Three) -> None:
    three.queue.now = 1.0


def _is_released(three: Three) -> None:
    three.queue.release(three.owners["least"])
    three.queue.popleft_n(three.queue.unprotected)


@pytest.mark.parametrize(
    ("change", "next_one"),
    [
        (lambda three: None, "least"),
        (_stands_elsewhere, "other"),
        (_uses_more, "other"),
        (_time_passes, "other"),
        (_is_released, "other"),
        (lambda three: three.free("late"), "late"),
    ],
)
def test_the_owner_that_is_worth_the_least_loses_its_blocks(
    change: Callable[[Three], None], next_one: str
) -> None:
    three = Three()
    for owner in three.owners.values():
        owner.shared, owner.session = False, ("acme", "s")
    assert three.taken() == "least"
    change(three)
    assert three.taken() == next_one


def test_what_is_shared_is_as_old_as_its_oldest_block() -> None:
    three = Three()
    three.by_age = True
    three.queue._used[:] = [0.0, 5.0, 5.0, 5.0, *[3.0] * 8]
    three.owners["least"].since, three.owners["other"].since = 0.0, 3.0
    assert [three.taken(), three.taken()] == ["least", "other"]
