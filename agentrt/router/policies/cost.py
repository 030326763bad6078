"""Cost: the replica where the call is expected to end first, its harm to others counted in.

A call's finish is its wait behind calls of its level and better ones, the prefill of what
the replica does not hold, its output at the replica's pace beside what runs there, and the
way there. What it makes the others wait is added. A program stays where its last call went
unless another replica is better by a share of what its context there is worth.
"""

from __future__ import annotations

import math
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
        level, prompt, home = call.level, call.prompt_tokens, call.home
        holdings, others, speed = call.holdings, self._others, replicas[0].speed
        output_s = call.output_tokens * speed.step_s
        beside_s = call.output_tokens * speed.beside_s * (1.0 + others)
        prefill_s, harm_s = speed.prefill_s, speed.prefill_s * others
        best, least = replicas[0], math.inf
        stay: ReplicaView | None = None
        stay_s = 0.0
        for replica in replicas:
            beside = replica.calls
            missing = prompt - (holdings[replica.index] if holdings else 0)
            seconds = (
                replica.transfer_s
                + replica.waits_s[level]
                + replica.pace.value
                * (missing * (prefill_s + harm_s * beside) + output_s + beside_s * beside)
            )
            if seconds < least:
                best, least = replica, seconds
            if replica.name == home:
                stay, stay_s = replica, seconds
        if stay is None:
            return best
        return stay if stay_s - least <= self._margin * call.held(stay) * prefill_s else best
