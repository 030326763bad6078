"""Cost: the replica where the call is expected to end first, its harm to others counted in.

A call's finish is its wait behind calls of its level and better ones, the prefill of what
the replica does not hold, its output at the replica's pace beside what runs there, and the
way there. What it makes the others wait is added. A program stays where its last call went
unless another replica is better by a margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall

MARGIN = 0.1
"""How much better another replica must be, as a share of the call's own expected time."""
OTHERS = 1.0
"""What a second that another call waits counts, beside one of this call's own."""


class Cost(Router):
    """By expected seconds, from what replicas hold, have to do, and have shown of their speed."""

    name: ClassVar[str] = "cost"
    reads_blocks: ClassVar[bool] = True

    def __init__(self, margin: float = MARGIN, others: float = OTHERS) -> None:
        self._margin, self._others = margin, others

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        level, prompt, output = call.level, call.prompt_tokens, call.output_tokens
        holdings, home, others = call.holdings, call.home, self._others
        best, least, stay = replicas[0], float("inf"), None
        stay_s = 0.0
        for replica in replicas:
            speed, beside = replica.speed, replica.calls
            missing = prompt - (holdings[replica.index] if holdings else 0)
            seconds = (
                replica.transfer_s
                + replica.waits_s[level]
                + missing * speed.prefill_s * (1.0 + others * beside)
                + output * (speed.step_s + speed.beside_s * beside * (1.0 + others))
            )
            if seconds < least:
                best, least = replica, seconds
            if replica.name == home:
                stay, stay_s = replica, seconds
        if stay is not None and stay_s <= least * (1.0 + self._margin):
            return stay
        return best
