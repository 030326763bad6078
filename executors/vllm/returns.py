"""How much of a returning program's prompt its own calls had computed before.

Of each program (or session) the chains of block hashes of its last few calls are kept,
eight bytes a block. A hash stands for all tokens up to its block, so what a new prompt
has in common with a chain is found by bisection.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence

from agentrt.scheduler.retention.context import Key

_CHAINS = 8
"""Calls of a program that are remembered: parallel branches return to different ones."""
_PROGRAMS = 8192
"""Programs and sessions that are remembered; the longest unheard-of are forgotten."""


class Returns:
    """Chains of block hashes by program. Bounded in size."""

    def __init__(self) -> None:
        self._chains: OrderedDict[Key, deque[array[int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chains)

    def known(self, key: Key, hashes: Sequence[bytes]) -> int:
        """How many leading blocks of a prompt with these hashes were computed before."""
        return max((_common(chain, hashes) for chain in self._chains.get(key, ())), default=0)

    def note(self, key: Key, hashes: Sequence[bytes], computed: int) -> None:
        """A call ended that had computed the first ``computed`` blocks of these."""
        if computed <= 0:
            return
        chains = self._chains.setdefault(key, deque(maxlen=_CHAINS))
        self._chains.move_to_end(key)
        before, common = array("Q"), 0
        for chain in chains:
            shared = _common(chain, hashes)
            if shared > common:
                before, common = chain, shared
        common = min(common, computed)
        chain = before[:common]
        chain.extend(_short(value) for value in hashes[common:computed])
        if len(before) == common and common:
            chains.remove(before)  # it goes on in the new one
        chains.append(chain)
        if len(self._chains) > _PROGRAMS:
            self._chains.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Its program ended."""
        self._chains.pop(key, None)

    def clear(self) -> None:
        """The cache was emptied on purpose: nothing of it counts as lost."""
        self._chains.clear()


def _common(chain: array[int], hashes: Sequence[bytes]) -> int:
    """The length of the common beginning; equal at an index means equal before it."""
    low, high = 0, min(len(chain), len(hashes))
    while low < high:
        middle = (low + high) // 2
        if chain[middle] == _short(hashes[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def _short(value: bytes) -> int:
    return int.from_bytes(value[:8])
