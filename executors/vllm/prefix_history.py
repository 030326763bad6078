"""What programs' calls had computed before, by the hashes of their blocks."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence

from agentrt.scheduler.retention.context import Key

_SHORT = 8
"""Bytes of a block's hash that are kept."""
_CHAINS = 8
"""Calls of a program that are remembered: parallel branches return to different ones."""
_PROGRAMS = 8192
"""Programs and sessions that are remembered; the longest unheard-of are forgotten."""


class PrefixHistory:
    """How much of a returning program's prompt its own calls had computed before.

    Of each program (or session) the chains of block hashes of its last few calls are kept,
    eight bytes a block. A hash stands for all tokens up to its block, so what a new prompt
    has in common with a chain is found by bisection.
    """

    def __init__(self) -> None:
        self._chains: OrderedDict[Key, deque[bytearray]] = OrderedDict()

    def known(self, key: Key, hashes: Sequence[bytes]) -> int:
        """How many leading blocks of a prompt with these hashes were computed before."""
        chains = self._chains.get(key)
        return max([_common(chain, hashes) for chain in chains]) if chains else 0

    def note(self, key: Key, hashes: Sequence[bytes], computed: int) -> None:
        """A call ended that had computed the first ``computed`` blocks of these."""
        if computed <= 0:
            return
        chains = self._chains.setdefault(key, deque(maxlen=_CHAINS))
        self._chains.move_to_end(key)
        at, common = -1, 0
        for index, chain in enumerate(chains):
            shared = _common(chain, hashes)
            if shared > common:
                at, common = index, shared
        common = min(common, computed)
        if common and len(chains[at]) == common * _SHORT:  # the call goes on from there
            chain = chains[at]
            del chains[at]
        else:
            chain = chains[at][: common * _SHORT] if common else bytearray()
        chain += b"".join([value[:_SHORT] for value in hashes[common:computed]])
        chains.append(chain)
        if len(self._chains) > _PROGRAMS:
            self._chains.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Its program ended."""
        self._chains.pop(key, None)

    def clear(self) -> None:
        """The cache was emptied on purpose: nothing of it counts as lost."""
        self._chains.clear()


def _common(chain: bytearray, hashes: Sequence[bytes]) -> int:
    """The length of the common beginning; equal at an index means equal before it."""
    low, high = 0, min(len(chain) // _SHORT, len(hashes))
    index = high - 1  # the first look: mostly a program's call goes on from its last
    while low < high:
        if hashes[index].startswith(chain[index * _SHORT : (index + 1) * _SHORT]):
            low = index + 1
        else:
            high = index
        index = (low + high) // 2
    return low


def common(hashes: Sequence[bytes], others: Sequence[bytes]) -> int:
    """How many leading values are the same: equal at an index means equal before it."""
    both = range(min(len(hashes), len(others)))
    return bisect_left(both, True, key=lambda at: hashes[at] != others[at])
