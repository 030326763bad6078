"""Prefix: a call of which some replica holds the better half goes to whichever holds the most.

As Preble (arXiv 2407.00023) has it: exploit what is cached where that saves more than is left
to compute, else explore, which is the least used replica; and do not follow a prefix to a
replica that has much more to do than another. Of replicas that hold equally much, the least
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall, least_used

IMBALANCE = 2.0
"""A replica with this many times the tokens in flight of the least used has too much to do,
unless the difference is no more than the call's own prompt."""


class Prefix(Router):
    """By what replicas hold, within the bounds of balance."""

    name: ClassVar[str] = "prefix"
    reads_blocks: ClassVar[bool] = True

    def __init__(self, imbalance: float = IMBALANCE) -> None:
        self._imbalance = imbalance

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        idlest = least_used(replicas)
        held = call.held_by(replicas)
        most = max(held)
        if 2 * most <= call.prompt_tokens:
            return idlest
        holder = least_used([r for r, there in zip(replicas, held, strict=True) if there == most])
        limit = max(idlest.in_flight * self._imbalance, idlest.in_flight + call.prompt_tokens)
        return holder if holder.in_flight <= limit else idlest
