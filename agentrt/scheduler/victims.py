"""Whom to preempt, so that better waiting calls run in this step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
    pool = (
        call
        for call in reversed(running)
        if call.residency_steps >= config.min_residency_steps and not room.spared(call)
    )
    chosen: list[QueuedCall] = []
    for call in heads:
        if len(chosen) >= config.max_preemptions_per_step:
            break
        needed = room.blocks_needed(call)
        leaving: list[QueuedCall] = []
        while free_slots < 1 or free_blocks < needed:
            victim = next(pool, None)
            if victim is None or victim.level <= call.level:
                return chosen
            leaving.append(victim)
            free_slots += 1
            free_blocks += room.blocks_held(victim)
        chosen += leaving
        free_slots, free_blocks = free_slots - 1, free_blocks - needed
        if call.level >= running[-1].level:
            break
    return chosen
