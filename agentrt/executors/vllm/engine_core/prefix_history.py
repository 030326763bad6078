"""Remembers which blocks a program's calls have computed, by the hashes of the blocks.

A chain has the hashes of the blocks that a call has computed, in order, a few bytes for each. A
block's hash covers all tokens up to the block's end, so the common prefix of a new prompt and a
chain is found by bisection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

_BYTES = 8
"""Number of bytes of a block's hash that are kept."""

Chains = deque[bytearray]
"""The chains of the last few calls of a program or session.

There are several, because parallel branches continue different calls.
"""


def known_blocks(chains: Chains, hashes: Sequence[bytes]) -> int:
    """Return how many leading blocks of a prompt with these hashes were computed before."""
    return max([_common(chain, hashes) for chain in chains], default=0)


def note_blocks(chains: Chains, hashes: Sequence[bytes], computed: int) -> None:
    """Note that a call, which has ended, computed the first ``computed`` of these blocks."""
    if computed <= 0:
        return
    at, common = -1, 0
    for index, chain in enumerate(chains):
        shared = _common(chain, hashes)
        if shared > common:
            at, common = index, shared
    common = min(common, computed)
    if common and len(chains[at]) == common * _BYTES:  # the call continues this chain
        chain = chains[at]
        del chains[at]
    else:
        chain = chains[at][: common * _BYTES] if common else bytearray()
    chain += b"".join([value[:_BYTES] for value in hashes[common:computed]])
    chains.append(chain)


def most_in_common(hashes: Sequence[bytes], others: Iterable[Sequence[bytes]]) -> int:
    """Return how many leading blocks ``hashes`` shares with the most similar of ``others``."""
    return max([_leading(hashes, other) for other in others], default=0)


def _leading(hashes: Sequence[bytes], others: Sequence[bytes]) -> int:
    both = range(min(len(hashes), len(others)))
    return bisect_left(both, True, key=lambda at: hashes[at] != others[at])


def _common(chain: bytearray, hashes: Sequence[bytes]) -> int:
    """Return the number of common leading blocks. Hashes that are equal have equal predecessors."""
    low, high = 0, min(len(chain) // _BYTES, len(hashes))
    index = high - 1  # try the end first: mostly a call continues its program's last call
    while low < high:
        if hashes[index].startswith(chain[index * _BYTES : (index + 1) * _BYTES]):
            low = index + 1
        else:
            high = index
        index = (low + high) // 2
    return low
