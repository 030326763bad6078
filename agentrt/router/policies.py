"""The built-in routers, each with its rule and its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentrt.router.base import ReplicaView, Router, RouterCall, least_used

PAPERS_THRESHOLD = 2048
"""The longest prompt that `Agentix` treats as short, in tokens."""
MARGIN = 0.5
"""A share of the prefill time that the program's home saves by its cache. `CostRouter` moves a call
to another replica only if the cost there is lower by more than this share.
"""
OTHERS = 1.0
"""The weight that `CostRouter` gives to a second by which the call delays another call, relative to
a second by which the call itself is delayed.
"""
IMBALANCE = 2.0
"""`PrefixRouter` treats a replica as overloaded if its number of tokens in flight is more than this
factor times that of the least used replica, and also exceeds it by more than the call's prompt.
"""


class Agentix(Router):
    """A router that sends a short call to the least used replica, and a long call to its program's
    home.

    Source: Agentix, Algorithm 2. The home is the replica of the program's first long call; if this
    replica is lost or takes no calls, the home is the replica of the next long call. A program that
    calls several models has a home for each of them. A call is long if its prompt has more than
    ``threshold`` tokens (2,048 in the Agentix paper).
    """

    name: ClassVar[str] = "agentix"

    def __init__(self, threshold: float = PAPERS_THRESHOLD) -> None:
        self._threshold = threshold
        self._homes: dict[str, dict[str, str]] = {}
        """For each program, the names of its homes by model."""

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        if call.prompt_tokens <= self._threshold:
            return least_used(replicas)
        homes = self._homes.setdefault(call.program_id, {})
        home = homes.get(call.model)
        for replica in replicas:
            if replica.name == home:
                return replica
        chosen = least_used(replicas)
        homes[call.model] = chosen.name
        return chosen

    def program_ended(self, program_id: str) -> None:
        self._homes.pop(program_id, None)

    def replica_lost(self, name: str) -> None:
        for homes in self._homes.values():
            for model in [model for model, home in homes.items() if home == name]:
                del homes[model]


class CostRouter(Router):
    """A router that sends a call to the replica with the least expected cost. The cost is the time
    until the call ends, plus the time by which it delays other calls.

    The time until the call ends is the sum of the wait behind calls of the same or a better level,
    the prefill of the tokens that the replica has not cached, the decoding of the output next to
    the replica's other calls, and the transfer. A call stays at its program's home unless another
    replica is better by more than ``margin``, a share of the prefill that the home saves. The
    delays of other calls have the weight ``others``.
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
            saved = cached[at] - cached[seconds.index(least)]
            if seconds[at] - least <= self._margin * saved * compute_s:
                return home
        return replicas[seconds.index(least)]


class LeastUsed(Router):
    """A router that sends each call to the replica with the fewest tokens in flight, whichever
    program makes the call.
    """

    name: ClassVar[str] = "least-used"

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        return least_used(replicas)


class PrefixRouter(Router):
    """A router that sends a call to the replica with the longest cached prefix of the prompt, if
    the prefix is more than half of the prompt and the replica is not overloaded. Otherwise it sends
    the call to the least used replica.

    Source: Preble (arXiv 2407.00023), which uses a cached prefix only if the prefix is longer than
    the remaining prompt and the replica is not overloaded. If several replicas have cached equally
    long prefixes, the least used of them is chosen.
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


class RoundRobinRouter(Router):
    """A router that sends the calls to the replicas in turn, whatever their load, as most load
    balancers do.

    The next replica is the candidate whose last turn is longest ago. A common counter would be
    wrong where replicas serve different models: calls that alternate between a model on two
    replicas and a model on one replica would always find the counter at the same of the two.
    """

    name: ClassVar[str] = "round-robin"

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        """The number of each replica's last turn. Turns are counted over all replicas."""
        self._next = 0

    def choose(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> ReplicaView:
        last_turns = self._turns
        chosen = min(replicas, key=lambda replica: last_turns.get(replica.name, -1))
        last_turns[chosen.name] = self._next
        self._next += 1
        return chosen
