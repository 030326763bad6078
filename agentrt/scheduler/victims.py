"""Whom to preempt, so that better waiting calls run in this step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class Room:
    """What an engine says of its calls: KV blocks that one needs, that one holds, and who
    is ``spared`` whatever its priority. The default is an engine without memory limits.
    """

    blocks_needed: Callable[[QueuedCall], int] = lambda call: 0
    blocks_held: Callable[[QueuedCall], int] = lambda call: 0
    spared: Callable[[QueuedCall], bool] = lambda call: False


def choose_victims(
    heads: Iterable[QueuedCall],
    running: Sequence[QueuedCall],
    free_slots: int,
    free_blocks: int,
    room: Room,
    config: SchedulerConfig,
) -> list[QueuedCall]:
    """The running calls to preempt for the waiting ``heads``, best first.

    ``running`` is sorted by key, the worst last. Only a call of a strictly worse level
    gives way, only when that makes enough room (batch slots and KV blocks) for the
    waiting call to run, and never one that hysteresis protects or the engine spares.
    Once ``max_preemptions_per_step`` are chosen, the other waiting calls have to wait
    for the next step.
    """
    pool = _Lazy(
        call
        for call in reversed(running)
        if call.residency_steps >= config.min_residency_steps and not room.spared(call)
    )
    taken = 0
    for call in heads:
        if taken >= config.max_preemptions_per_step:
            break
        needed = room.blocks_needed(call)
        more, slots, blocks = 0, free_slots, free_blocks
        while slots < 1 or blocks < needed:
            victim = pool.at(taken + more)
            if victim is None or victim.level <= call.level:
                return pool.first(taken)
            slots += 1
            blocks += room.blocks_held(victim)
            more += 1
        taken += more
        free_slots, free_blocks = slots - 1, blocks - needed
        if call.level >= running[-1].level:
            break
    return pool.first(taken)


class _Lazy:
    """A sequence drawn from an iterator only as far as one looks."""

    def __init__(self, source: Iterator[QueuedCall]) -> None:
        self._source = source
        self._drawn: list[QueuedCall] = []

    def at(self, index: int) -> QueuedCall | None:
        while len(self._drawn) <= index:
            call = next(self._source, None)
            if call is None:
                return None
            self._drawn.append(call)
        return self._drawn[index]

    def first(self, count: int) -> list[QueuedCall]:
        return self._drawn[:count]
