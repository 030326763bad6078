"""Cost: the replica where the call is expected to end first, its harm to others counted in.

A call's finish is its wait behind calls of its level and better ones, the prefill of what
the replica does not hold, its output at the replica's pace beside what runs there, and the
way there. What it makes the others wait is added. A program stays where its last call went
unless another replica is better by a share of what its context there is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall

MARGIN = 0.5
"""How much better another replica must be, as a share of the prefill that staying saves."""
OTHERS = 1.0
"""What a second that another call waits counts, beside one of this call's own."""


class Cost(Router):
    """By expected seconds, from what replicas hold, have to do, and have shown of their speed."""

    name: ClassVar[str] = "cost"
    reads_blocks: ClassVar[bool] = True

    def __init__(self, margin: float = MARGIN, others: float = OTHERS) -> None:
        self._margin, self._others = margin, others

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        held, level, prompt = call.held_by(replicas), call.level, call.prompt_tokens
        speed, others = replicas[0].speed, self._others
        compute_s, harm_s = speed.prefill_s, speed.prefill_s * others
        output_s = call.output_tokens * speed.step_s
        beside_s = call.output_tokens * speed.beside_s * (1.0 + others)
        seconds = [
            replica.waits_s[level]
            + replica.pace
            * (
                (prompt - there) * (compute_s + harm_s * replica.calls)
                + (output_s + beside_s * replica.calls)
            )
            for replica, there in zip(replicas, held, strict=True)
        ]
        least = min(seconds)
        home = call.home
        if home is not None and home in replicas:
            at = replicas.index(home)
            if seconds[at] - least <= self._margin * held[at] * compute_s:
                return home
        return replicas[seconds.index(least)]
