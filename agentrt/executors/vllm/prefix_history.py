"""What a program's calls had computed before, by the hashes of their blocks.

A chain has the hashes of the blocks that a call had computed, a few bytes a block. A hash stands
for all tokens up to its block, so what a new prompt has in common with a chain is found by
bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

_BYTES = 8
"""Bytes of a block's hash that are kept."""

Chains = deque[bytearray]
"""Those of a program's or session's last few calls: parallel branches return to different ones."""


def known_blocks(chains: Chains, hashes: Sequence[bytes]) -> int:
    """How many leading blocks of a prompt with these hashes were computed before."""
    return max([_common(chain, hashes) for chain in chains], default=0)


def note_blocks(chains: Chains, hashes: Sequence[bytes], computed: int) -> None:
    """A call ended that had computed the first ``computed`` blocks of these."""
    if computed <= 0:
        return
    at, common = -1, 0
    for index, chain in enumerate(chains):
        shared = _common(chain, hashes)
        if shared > common:
            at, common = index, shared
    common = min(common, computed)
    if common and len(chains[at]) == common * _BYTES:  # the call goes on from there
        chain = chains[at]
        del chains[at]
    else:
        chain = chains[at][: common * _BYTES] if common else bytearray()
    chain += b"".join([value[:_BYTES] for value in hashes[common:computed]])
    chains.append(chain)


def most_in_common(hashes: Sequence[bytes], others: Iterable[Sequence[bytes]]) -> int:
    """How many leading blocks one of the ``others`` has in common with these."""
    return max([_leading(hashes, other) for other in others], default=0)


def _leading(hashes: Sequence[bytes], others: Sequence[bytes]) -> int:
    both = range(min(len(hashes), len(others)))
    return bisect_left(both, True, key=lambda at: hashes[at] != others[at])


def _common(chain: bytearray, hashes: Sequence[bytes]) -> int:
    """The length of the common beginning; equal at an index means equal before it."""
    low, high = 0, min(len(chain) // _BYTES, len(hashes))
    index = high - 1  # the first look: mostly a program's call goes on from its last
    while low < high:
        if hashes[index].startswith(chain[index * _BYTES : (index + 1) * _BYTES]):
            low = index + 1
        else:
            high = index
        index = (low + high) // 2
    return low
