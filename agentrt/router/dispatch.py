"""The dispatcher, which keeps the data that routers use: calls in flight, cached blocks, and the
speed of replicas.

The code that sends calls to replicas calls the dispatcher, and the dispatcher calls the router.
Real and simulated replicas use the same dispatcher, so that calls to both are routed in the same
way.

`ReplicaBlockIndex` maps the hashes of KV blocks to the replicas that have cached them. A block's
hash covers all tokens of the prompt up to the end of the block. So blocks form a prefix tree, and a
table from hashes to replicas gives access to each node of the tree in one step. Engines usually
evict a chain of blocks from its end, so the cached blocks of a prompt are the first blocks of the
prompt. The number of these blocks is found by bisection, for all replicas at once.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from agentrt.errors import InvariantError
from agentrt.request import CallReport
from agentrt.router.base import LEVELS, ReplicaView, Router, RouterCall
from agentrt.router.kv_events import KVEventBatch
from agentrt.router.speed import Pace, Speed

# -- cached blocks -----------------------------------------------------------------------


class ReplicaBlockIndex:
    """An index from block hashes (64 bits) to the replicas that have the block, as a bitmask."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        self._replicas = 0

    def __len__(self) -> int:
        """Return the number of different blocks that are known to be cached."""
        return len(self._holders)

    def join(self) -> int:
        """Add a replica with an empty cache, and return its number, from 0 on."""
        self._replicas += 1
        return self._replicas - 1

    # -- KV events ---------------------------------------------------------------------

    def store(self, replica: int, hashes: Iterable[int]) -> None:
        """Record that the replica has stored these blocks."""
        bit = 1 << replica
        new = dict.fromkeys(hashes, bit)
        table = self._holders
        for value in table.keys() & new.keys():
            new[value] |= table[value]
        table.update(new)

    def remove(self, replica: int, hashes: Iterable[int]) -> None:
        """Record that the replica has evicted these blocks."""
        table, bit = self._holders, 1 << replica
        take = table.pop
        for value in hashes:
            holders = take(value, 0)
            if holders & ~bit:
                table[value] = holders & ~bit

    def replace(self, replica: int, hashes: Iterable[int]) -> None:
        """Record that the replica has exactly these blocks."""
        self.clear(replica)
        self.store(replica, hashes)

    def clear(self, replica: int) -> None:
        """Record that the replica has no blocks. Takes time proportional to the whole index."""
        self.remove(replica, self.blocks(replica))

    def blocks(self, replica: int) -> set[int]:
        """Return all blocks that the replica is known to have."""
        bit = 1 << replica
        return {value for value, holders in self._holders.items() if holders & bit}

    # -- queries -----------------------------------------------------------------------

    def match(self, hashes: Sequence[int], size: int = 1, most: int | None = None) -> list[int]:
        """Return, for each replica, the number of a prompt's leading tokens that the replica has
        cached. ``hashes`` are the prompt's blocks of ``size`` tokens each. The numbers are at most
        ``most``.

        The numbers are exact if each replica has cached the first blocks of the prompt without a
        gap. If a block in the middle is missing, the number may be too high.
        """
        everybody = (1 << self._replicas) - 1
        ends = self._ends(hashes, everybody)
        limit = len(hashes) * size if most is None else most
        # Set the most common length for all replicas first. In most cases it is the length of the
        # prefix that all programs share.
        usual, length = max(ends, key=lambda end: end[0].bit_count())
        lengths = [min(length * size, limit)] * self._replicas
        for replicas, length in ends:
            if replicas is not usual:
                _set(lengths, replicas, min(length * size, limit))
        return lengths

    def _ends(self, hashes: Sequence[int], everybody: int) -> list[tuple[int, int]]:
        """Return groups of replicas that have the same number of leading blocks, as pairs of the
        group's bitmask and this number. Each replica is in one group.
        """
        holders_of = self._holders.get
        ends = []
        # Intervals of positions, with the replicas that have the blocks at both ends. All replicas
        # have the position before the first block, and none has the position after the last.
        spans = [(-1, len(hashes), everybody, 0)]
        while spans:
            low, high, first, last = spans.pop()
            while high - low > 1:
                middle = (low + high) // 2
                here = holders_of(hashes[middle], 0) & first | last
                if here == first:
                    low = middle
                elif here == last:
                    high = middle
                else:
                    spans.append((middle, high, here, last))
                    high, last = middle, here
            ends.append((first & ~last, high))
        return ends

    def check_integrity(self) -> None:
        """Raise `InvariantError` for an entry without a valid replica. For tests."""
        everybody = (1 << self._replicas) - 1
        for value, holders in self._holders.items():
            if not holders or holders & ~everybody:
                raise InvariantError(
                    f"block {value:x} has the replica mask {holders:#b}; it must have at least "
                    f"one bit, and only the bits of the {self._replicas} replicas"
                )


def common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of leading blocks that two prompts share. If the hashes at a position are
    equal, the hashes at all earlier positions must be equal, too.
    """
    most = min(len(first), len(second))
    return bisect_left(range(most), True, key=lambda at: first[at] != second[at])


def _set(lengths: list[int], replicas: int, length: int) -> None:
    while replicas:
        lowest = replicas & -replicas
        lengths[lowest.bit_length() - 1] = length
        replicas ^= lowest


# -- the dispatcher ----------------------------------------------------------------------


_FIRST_OUTPUT = 128.0
_LEARN = 0.05
_KINDS = 4096
"""Maximum number of kinds of calls whose output lengths are kept; the kind whose last call ended
longest ago is dropped first.
"""
_GUESSES = 8
"""Number of a program's last calls whose blocks are kept while they are in flight. The last call on
each replica is kept, too.
"""


@dataclass(slots=True, eq=False)
class RoutedCall:
    """A call that was sent to a replica, and the amounts by which it raises the replica's load.

    ``tokens`` is the number of the call's prompt tokens and expected output tokens, ``missing`` the
    number of its prompt tokens that are not cached on the replica, and ``beside`` the number of the
    replica's other calls when this call was sent.
    """

    call: RouterCall
    replica: ReplicaView
    tokens: int
    missing: int
    beside: int
    blocks: Sequence[int] = ()
    over: bool = False


@dataclass(slots=True)
class _Home:
    """The replica of a program's last call, and the tokens of context that this call leaves in the
    replica's cache. ``calls`` are the program's last calls, and ``on_replica`` its last call on
    each replica, by `ReplicaView.index`, as far as these calls are in flight.
    """

    replica: ReplicaView
    tokens: int = 0
    calls: tuple[RoutedCall, ...] = ()
    on_replica: dict[int, RoutedCall] = field(default_factory=dict)

    def sent(self, routed: RoutedCall) -> None:
        self.calls = (*self.calls[1 - _GUESSES :], routed)
        self.on_replica[routed.replica.index] = routed

    def ended(self, routed: RoutedCall) -> None:
        if routed in self.calls:
            self.calls = tuple(call for call in self.calls if call is not routed)
        if self.on_replica.get(routed.replica.index) is routed:
            del self.on_replica[routed.replica.index]

    def in_flight(self) -> Iterator[RoutedCall]:
        """Yield the kept calls. A call may come twice."""
        yield from self.calls
        yield from self.on_replica.values()


class Dispatcher:
    """A dispatcher that asks the router for each call, and keeps the router's data up to date.

    ``level_ends`` are the upper ends of the scheduler's levels, in seconds of attained service; if
    it is empty, all calls have the same level. ``speed`` has the initial costs of calls.
    """

    def __init__(
        self, router: Router, level_ends: Sequence[float] = (), speed: Speed | None = None
    ) -> None:
        self.router = router
        self.speed = Speed() if speed is None else speed
        self.cached_blocks = ReplicaBlockIndex()
        self._ends = list(level_ends[: LEVELS - 1])
        self._ahead: list[_LevelLoad] = []
        self._paces: list[Pace] = []
        self._compares = False
        """Whether there are several replicas, so that their speeds and queues are worth keeping."""
        self._homes: dict[str, _Home] = {}
        self._outputs: OrderedDict[str, float] = OrderedDict()

    def join(self, name: str, slots: int = 0, transfer_s: float = 0.0) -> ReplicaView:
        """Add a replica with an empty cache and no calls, and return its view."""
        view = ReplicaView(
            name,
            index=self.cached_blocks.join(),
            slots=slots,
            transfer_s=transfer_s,
            waits_s=[transfer_s] * LEVELS,
            speed=self.speed,
        )
        self._ahead.append(_LevelLoad())
        self._paces.append(Pace())
        self._compares = len(self._paces) > 1
        return view

    @property
    def programs(self) -> int:
        """The number of programs whose homes (the replicas of their last calls) are kept."""
        return len(self._homes)

    # -- calls -------------------------------------------------------------------------

    def send(self, call: RouterCall, replicas: Sequence[ReplicaView]) -> RoutedCall:
        """Ask the router for a replica, and add the call to the replica's load until `ended`."""
        home = self._homes.get(call.program_id)
        call.home = None if home is None else home.replica
        call.level = bisect_right(self._ends, call.level_service_s)
        call.output_tokens = min(self._outputs.get(call.kind, _FIRST_OUTPUT), call.output_limit)
        reads = self.router.reads_blocks
        blocks = call.blocks() if reads else ()
        if reads:
            call.match = partial(self._match, call, blocks, home)
        view = self.router.choose(call, replicas)
        tokens = call.prompt_tokens + int(call.output_tokens)
        missing = call.prompt_tokens - call.cached_on(view)
        routed = RoutedCall(call, view, tokens, missing, view.calls, blocks)
        view.in_flight += tokens
        view.calls += 1
        if self._compares:
            self._ahead[view.index].add(call.level, 1, missing, view)
        if home is None:
            home = self._homes[call.program_id] = _Home(view)
        home.replica, home.tokens = view, tokens
        if blocks:
            home.sent(routed)
        return routed

    def _match(self, call: RouterCall, blocks: Sequence[int], home: _Home | None) -> list[int]:
        """Return the number of leading prompt tokens in each replica's cache: tokens of blocks that
        the engines have reported, or that the program's calls in flight will probably store. If the
        engines do not report blocks, count the context of the program's last call on its home.
        """
        size, most = call.block_size, call.prompt_tokens - 1
        cached = self.cached_blocks.match(blocks, size, most)
        if home is None:
            return cached
        if not size:
            # The engines do not report their caches, so assume that the program's home still has
            # the whole context.
            cached[home.replica.index] = max(0, min(home.tokens, most))
        for routed in home.in_flight():
            # Assume that the calls in flight will store their blocks. Engines report stored blocks
            # only at the end of a call.
            index, guess = routed.replica.index, common(routed.blocks, blocks) * size
            cached[index] = max(cached[index], min(guess, most))
        return cached

    def ended(self, routed: RoutedCall, report: CallReport | None = None) -> None:
        """Record the end of a call. ``report`` is the engine's report, if there is one.
        Idempotent.
        """
        if routed.over:
            return
        routed.over = True
        view = routed.replica
        view.in_flight -= routed.tokens
        view.calls -= 1
        home = self._homes.get(routed.call.program_id)
        if home is not None:
            home.ended(routed)
        if not self._compares:
            return
        if report is not None and report.steps:
            beside = (routed.beside + view.calls) / 2
            if report.service_s > 0:
                expected_s = self.speed.expected_s(report, beside)
                view.pace = self._paces[view.index].learn(report.service_s / expected_s)
            self.speed.learn(report, beside)
            self._learn(routed.call.kind, report.output_tokens)
        self._ahead[view.index].add(routed.call.level, -1, -routed.missing, view)

    def _learn(self, kind: str, tokens: int) -> None:
        before = self._outputs.get(kind)
        self._outputs[kind] = tokens if before is None else before + _LEARN * (tokens - before)
        self._outputs.move_to_end(kind)
        if len(self._outputs) > _KINDS:
            self._outputs.popitem(last=False)

    def program_ended(self, program_id: str) -> None:
        """Handle the end of a program, which makes no more calls."""
        self._homes.pop(program_id, None)
        self.router.program_ended(program_id)

    # -- replicas ----------------------------------------------------------------------

    def cache_changed(self, view: ReplicaView, batch: KVEventBatch) -> None:
        """Handle blocks that a replica has stored and removed. Pass batches in the order of their
        numbers (`KVEventStream`).
        """
        if batch.whole:
            self.cached_blocks.replace(view.index, batch.stored)
            return
        self.cached_blocks.remove(view.index, batch.removed)
        self.cached_blocks.store(view.index, batch.stored)

    def lost(self, view: ReplicaView) -> None:
        """Handle the loss of a replica: its cache is empty, and its calls are about to end."""
        self.cached_blocks.clear(view.index)
        self._homes = {pid: home for pid, home in self._homes.items() if home.replica is not view}
        self.router.replica_lost(view.name)


class _LevelLoad:
    """The number of calls in flight on a replica, and of their prompt tokens that are not cached.
    For each level, the numbers include all better levels.
    """

    __slots__ = ("_calls", "_tokens")

    def __init__(self) -> None:
        self._calls = [0] * LEVELS
        self._tokens = [0] * LEVELS

    def add(self, level: int, calls: int, tokens: int, view: ReplicaView) -> None:
        """Add calls, and their prompt tokens that are not cached, to the load of ``level`` and of
        all larger levels, whose calls wait for them. Both numbers are negative if calls leave. Then
        update the waiting times of these levels in ``view``.
        """
        ahead, prompts, waits_s = self._calls, self._tokens, view.waits_s
        slots, way_s, speed = view.slots, view.transfer_s, view.speed
        token_s = view.pace * speed.prefill_s
        turn_s = view.pace * speed.service_s / slots if slots else 0.0
        few = _turns_to_wait(slots)
        for i in range(level, LEVELS):
            ahead[i] = count = ahead[i] + calls
            prompts[i] = missing = prompts[i] + tokens
            turns = few[count] if count <= slots else count - slots + 1.0
            waits_s[i] = way_s + missing * token_s + turns * turn_s


@lru_cache(64)
def _turns_to_wait(slots: int) -> list[float]:
    """Return, for each number of calls ahead, the expected number of them that must end before a
    slot is free.

    While slots are free, the number is below 1. It grows as fewer slots are free, because other
    calls may arrive first and take the free slots. The exponent comes from Sakasegawa's
    approximation of the waiting time in a queue with several servers (1977).
    """
    exponent = math.sqrt(2 * (slots + 1)) - 1
    return [math.pow(calls / max(1, slots), exponent) for calls in range(slots + 1)]
