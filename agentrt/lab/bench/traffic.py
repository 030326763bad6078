"""Made-up traffic for routers: live programs whose contexts grow, on replicas whose caches fill.

Nothing is served; what a replica's engine would report of its prefix cache is made up from a cache
of its own, which forgets whole programs, the longest unused first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from random import Random

from agentrt.request import CallReport
from agentrt.router import Dispatcher, ReplicaView, RouterCall, Trip, make_router
from agentrt.router.kv_events import KVEventBatch
from agentrt.scheduler.config import SchedulerConfig

PARTS = ("send", "end", "hear")
"""What happens with a call once: it is routed, it comes back, and its engine reports."""
BLOCK = 16
"""Tokens per block."""
BLOCKS = 8192
"""Blocks of each replica's cache."""
SLOTS = 32
BUSY = 0.75
"""The share of all slots that is taken."""
TYPES = 8
SYSTEM_BLOCKS = 32
"""Blocks that all programs of a type begin with."""
FIRST_BLOCKS, MORE_BLOCKS, MOST_BLOCKS = 32, 8, 256
"""A program's own: in its first call, more in each next (input and output), and at its end."""


@dataclass(slots=True, eq=False)
class _Program:
    name: str
    type: int
    blocks: array[int]


@dataclass(slots=True)
class _Cache:
    """What a replica has cached: of each program its blocks, the longest unused program first."""

    number: int = 0
    cached: OrderedDict[str, array[int]] = field(default_factory=OrderedDict)
    count: int = 0

    def store(self, program: _Program) -> KVEventBatch:
        before = self.cached.pop(program.name, array("Q"))
        self.cached[program.name] = program.blocks[:]
        stored = program.blocks[len(before) :]
        self.count += len(stored)
        removed = array("Q")
        while self.count > BLOCKS and len(self.cached) > 1:
            _, gone = self.cached.popitem(last=False)
            self.count -= len(gone)
            removed.extend(gone[SYSTEM_BLOCKS:])
        self.number += 1
        return KVEventBatch(self.number, stored, removed)


class Traffic:
    """``live`` programs, one after another calling, on so many replicas behind a router.

    A step is `prepare`, then `send`, `end` and `hear`, which are the router's work.
    """

    def __init__(self, router: str, replicas: int, live: int, seed: int = 0) -> None:
        self.rng = Random(f"traffic/{seed}")
        self.dispatcher = Dispatcher(make_router(router), SchedulerConfig().level_ends)
        self.views: list[ReplicaView] = [
            self.dispatcher.join(f"replica-{i}", SLOTS) for i in range(replicas)
        ]
        self.reads = self.dispatcher.router.reads_blocks
        self._caches = [_Cache() for _ in range(replicas)]
        self._systems = [self._random(SYSTEM_BLOCKS) for _ in range(TYPES)]
        self._made = 0
        self._programs = [self._program() for _ in range(live)]
        self._under_way: deque[tuple[Trip, _Program]] = deque()
        self._most = max(1, int(BUSY * SLOTS * replicas))

    def _random(self, blocks: int) -> array[int]:
        return array("Q", self.rng.randbytes(8 * blocks))

    def _program(self) -> _Program:
        self._made += 1
        kind = self.rng.randrange(TYPES)
        blocks = self._systems[kind] + self._random(FIRST_BLOCKS)
        return _Program(f"program-{self._made}", kind, blocks)

    def prepare(self) -> None:
        """Choose who calls next, and what ends: not the router's work."""
        index = self.rng.randrange(len(self._programs))
        program = self._programs[index]
        if len(program.blocks) >= MOST_BLOCKS:
            self.dispatcher.program_ended(program.name)
            program = self._programs[index] = self._program()
        self.program = program
        blocks = program.blocks.tolist()
        self.call = RouterCall(
            program.name,
            len(program.blocks) * BLOCK,
            attained_s=self.rng.expovariate(0.5),
            kind=f"type-{program.type}/call",
            block_size=BLOCK,
            blocks=lambda: blocks,
        )
        self.over = self._under_way.popleft() if len(self._under_way) >= self._most else None
        self.note: KVEventBatch | None = None
        if self.over is not None and self.reads:
            trip, ended = self.over
            self.note = self._caches[trip.replica.index].store(ended)
        steps = 100
        self.report = CallReport(
            service_s=steps * 0.008,
            steps=steps,
            prompt_tokens=self.call.prompt_tokens,
            cached_tokens=self.call.prompt_tokens // 2,
            output_tokens=steps,
        )

    def send(self) -> None:
        """Route a call."""
        trip = self.dispatcher.send(self.call, self.views)
        self._under_way.append((trip, self.program))

    def end(self) -> None:
        """A call comes back."""
        if self.over is not None:
            self.dispatcher.ended(self.over[0], self.report)

    def hear(self) -> None:
        """Its engine reports what it has stored and removed."""
        if self.over is not None and self.note is not None:
            self.dispatcher.cache_changed(self.over[0].replica, self.note)

    def grow(self) -> None:
        """The program's context is longer after its call: not the router's work."""
        self.program.blocks.extend(self._random(MORE_BLOCKS))
