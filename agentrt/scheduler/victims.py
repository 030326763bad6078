"""Whose batch slot goes to a better waiting call in this step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.config import SchedulerConfig


@dataclass(frozen=True, slots=True)
class Room:
    """What an engine says of its calls: KV blocks that one needs, and who is ``spared`` whatever
    its priority. The default is an engine without memory limits.
    """

    blocks_needed: Callable[[QueuedCall], int] = lambda call: 0
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

    ``running`` is sorted by key, the worst last. Only a call of a strictly worse level gives way,
    and never one that hysteresis protects or the engine spares. It gives up its batch slot, and
    never its memory: a head that does not fit into the ``free_blocks`` waits until it does, since
    what is pushed out has to be computed again, which delays all others too. Once
    ``max_preemptions_per_step`` are chosen, the other heads have to wait for the next step.
    """
    pool = (
        call
        for call in reversed(running)
        if call.residency_steps >= config.min_residency_steps and not room.spared(call)
    )
    victims: list[QueuedCall] = []
    for call in heads:
        if len(victims) >= config.max_preemptions_per_step or call.level >= running[-1].level:
            break
        free_blocks -= room.blocks_needed(call)
        if free_blocks < 0:
            break
        if free_slots > 0:
            free_slots -= 1
            continue
        victim = next(pool, None)
        if victim is None or victim.level <= call.level:
            break
        victims.append(victim)
    return victims
