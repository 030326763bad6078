"""The hashes of a prompt's blocks, as the engine core will compute them for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from agentrt.router.held import short

_REMEMBERED = 16384
"""Blocks whose hashes are remembered: prompts grow, and share their beginnings."""


class BlockHasher:
    """Hashes prompts in blocks of ``size`` tokens, by the function of that name in vLLM.

    For prompts without images, adapters or salt, whose blocks are known by their tokens alone.
    """

    def __init__(self, algorithm: str, size: int) -> None:
        from agentrt.executors.vllm._compat import block_hash

        self.size = size

        def chained(before: bytes | None, tokens: tuple[int, ...]) -> bytes:
            return block_hash(algorithm, before, tokens)

        self._hash: Callable[[bytes | None, tuple[int, ...]], bytes]
        self._hash = lru_cache(_REMEMBERED)(chained)

    def __call__(self, ids: Sequence[int]) -> list[int]:
        """64 bits of the hash of each full block."""
        size, before, found = self.size, None, []
        for start in range(0, len(ids) - size + 1, size):
            before = self._hash(before, tuple(ids[start : start + size]))
            found.append(short(before))
        return found
