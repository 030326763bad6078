"""The blocks that programs claim of the KV cache, and the members whose claims count.

What all programs of a type begin with is counted once for its members together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from agentrt.scheduler.admission.learned import Kind
from agentrt.scheduler.table import ProgramRow


class Own(NamedTuple):
    """What a call ``adds`` to its program's context, and ``holds`` beside others of it (tokens)."""

    adds: int
    holds: int


@dataclass(slots=True, eq=False)
class Program:
    """A program: the ``context`` it comes back for (tokens), and its ``own`` calls.

    ``shared`` are the tokens that it begins with as others of its ``kind`` do. ``claim`` are the
    blocks that it counts with, ``in_use`` those of a member that has calls. It ``returned`` when it
    was in the set before, and had been ``served_s`` when it came in last; ``fifo`` says that it
    came in for its age, and is not asked to give way; ``away`` counts the moments at which it went
    to wait for something else than a call.
    """

    row: ProgramRow
    kind: Kind
    shared: int
    context: int = 0
    own: dict[str, Own] = field(default_factory=dict)
    claim: int = 0
    in_use: int = 0
    member: bool = False
    returned: bool = False
    fifo: bool = False
    served_s: float = 0.0
    tools: int = 0
    away: int = 0

    @property
    def tokens(self) -> int:
        """What it takes of the cache, each token once, beside what its type shares.

        A chain goes on from its context. Branches have contexts of their own, and each that runs
        is counted; one that waits for a tool is not.
        """
        own = [*self.own.values()]
        if len(own) == 1:
            return max(self.context + own[0].adds - self.shared, 0)
        return max(self.context - self.shared, sum(one.holds for one in own), 0)

    @property
    def waits(self) -> bool:
        """Whether it is a member that has no call now."""
        return self.member and not self.own


class Claims:
    """The members, and what they claim of ``budget`` blocks of ``block_size`` tokens.

    ``claimed`` are their blocks, ``in_use`` those of members that have calls: what the others have
    kept is given up block by block.
    """

    def __init__(self, budget: int, block_size: int) -> None:
        self.claimed = self.in_use = 0
        self.members: set[Program] = set()
        self._budget, self._block_size = budget, block_size
        self._sharers: dict[Kind, tuple[int, int]] = {}
        """By type: how many members share a prefix, and the blocks that it is counted with."""

    def fits(self, program: Program) -> bool:
        """Whether a program that is no member has room beside the members."""
        return self.claimed + self.needs(program) <= self._budget

    def needs(self, program: Program) -> int:
        """The blocks that it would bring: its claim, and its type's prefix where that is not in."""
        if program.shared and program.kind not in self._sharers:
            return program.claim + self._blocks(program.shared)
        return program.claim

    def reckon(self, program: Program) -> None:
        """Claim anew what a program needs."""
        claim = min(self._blocks(program.tokens) + len(program.own), self._budget)
        if program.member:
            self.claimed += claim - program.claim
        program.claim = claim
        self._use(program)

    def add(self, program: Program) -> None:
        """It becomes a member, which it is not."""
        program.member, program.served_s = True, program.row.attained_s
        self.members.add(program)
        self.claimed += program.claim
        self._use(program)
        if program.shared:
            sharers, blocks = self._sharers.get(program.kind, (0, self._blocks(program.shared)))
            self._share(0 if sharers else blocks)
            self._sharers[program.kind] = sharers + 1, blocks

    def remove(self, program: Program) -> None:
        """It is a member no longer."""
        program.member, program.returned, program.fifo = False, True, False
        self.members.discard(program)
        self.claimed -= program.claim
        self._use(program)
        if program.shared:
            sharers, blocks = self._sharers.pop(program.kind)
            if sharers > 1:
                self._sharers[program.kind] = sharers - 1, blocks
            else:
                self._share(-blocks)

    def _use(self, program: Program) -> None:
        """Count anew what it takes of the cache for its calls, as long as it is a member."""
        in_use = program.claim if program.member and program.own else 0
        self.in_use += in_use - program.in_use
        program.in_use = in_use

    def _share(self, blocks: int) -> None:
        """A type's prefix came in, or left: it counts once, and as used."""
        self.claimed += blocks
        self.in_use += blocks

    def _blocks(self, tokens: int) -> int:
        return math.ceil(tokens / self._block_size)
