"""The routers, each with its rule and where it is from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall, least_used

PAPERS_THRESHOLD = 2048
"""Tokens of the longest prompt that is short to `Agentix`."""
MARGIN = 0.5
"""`CostRouter`: how much better another replica must be, as a share of the prefill that staying
saves.
"""
OTHERS = 1.0
"""`CostRouter`: what a second that another call waits counts, beside one of this call's own."""
IMBALANCE = 2.0
"""`Prefix`: a replica with this many times the tokens in flight of the least used is overloaded,
unless the difference is no more than the call's own prompt."""


class Agentix(Router):
    """A short call goes to the least used replica, a long one to its program's home.

    Algorithm 2 of the paper. The home is the replica that got the program's first long call; a
    prompt of more than ``threshold`` tokens (2,048 in the paper) is long.
    """

    name: ClassVar[str] = "agentix"

    def __init__(self, threshold: float = PAPERS_THRESHOLD) -> None:
        self._threshold = threshold
        self._homes: dict[str, str] = {}

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        if call.prompt_tokens <= self._threshold:
            return least_used(replicas)
        home = self._homes.get(call.program_id)
        for replica in replicas:
            if replica.name == home:
                return replica
        chosen = least_used(replicas)
        self._homes[call.program_id] = chosen.name
        return chosen

    def program_ended(self, program_id: str) -> None:
        self._homes.pop(program_id, None)

    def replica_lost(self, name: str) -> None:
        self._homes = {program: home for program, home in self._homes.items() if home != name}


class CostRouter(Router):
    """The replica where the call is expected to end first, its harm to others counted in.

    A call's finish is its wait behind calls of its level and better ones, the prefill of what
    the replica has not cached, its output at the replica's pace beside what runs there, and the
    way there. What it makes the others wait is added. A program stays where its last call went
    unless another replica is better by a share of what its context there is worth.
    """

    name: ClassVar[str] = "cost"
    reads_blocks: ClassVar[bool] = True

    def __init__(self, margin: float = MARGIN, others: float = OTHERS) -> None:
        self._margin, self._others = margin, others

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        cached, level, prompt = call.cached_on_each(replicas), call.level, call.prompt_tokens
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
            for replica, there in zip(replicas, cached, strict=True)
        ]
        least = min(seconds)
        home = call.home
        if home is not None and home in replicas:
            at = replicas.index(home)
            if seconds[at] - least <= self._margin * cached[at] * compute_s:
                return home
        return replicas[seconds.index(least)]


class LeastUsed(Router):
    """Each call goes to the replica with the fewest tokens in flight; knows no programs."""

    name: ClassVar[str] = "least-used"

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return least_used(replicas)


class Prefix(Router):
    """A call of which some replica has cached the better half goes to whichever has the most.

    As Preble (arXiv 2407.00023) has it: exploit what is cached where that saves more than is left
    to compute, else explore, which is the least used replica; and do not follow a prefix to a
    replica that has much more to do than another. Of replicas with equally much, the least used.
    """

    name: ClassVar[str] = "prefix"
    reads_blocks: ClassVar[bool] = True

    def __init__(self, imbalance: float = IMBALANCE) -> None:
        self._imbalance = imbalance

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        idlest = least_used(replicas)
        cached = call.cached_on_each(replicas)
        most = max(cached)
        if 2 * most <= call.prompt_tokens:
            return idlest
        best = least_used([r for r, there in zip(replicas, cached, strict=True) if there == most])
        limit = max(idlest.in_flight * self._imbalance, idlest.in_flight + call.prompt_tokens)
        return best if best.in_flight <= limit else idlest


class RoundRobin(Router):
    """Each call goes to the next replica in turn, whatever it has to do; as most load balancers."""

    name: ClassVar[str] = "round-robin"

    def __init__(self) -> None:
        self._next = 0

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        chosen = replicas[self._next % len(replicas)]
        self._next += 1
        return chosen
