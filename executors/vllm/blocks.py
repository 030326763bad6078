"""The hashes of a prompt's blocks, as the engine core will compute them for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from agentrt.router.kv_events import short

_REMEMBERED = 16384
"""Blocks whose hashes are remembered: prompts grow, and share their beginnings."""


class BlockHasher:
    """Hashes prompts in blocks of ``size`` tokens, by the function of that name in vLLM.

    For prompts without images or adapters, whose blocks are known by their tokens and their salt.
    """

    def __init__(self, algorithm: str, size: int) -> None:
        from agentrt.executors.vllm._compat.prefixes import block_hash

        self.size = size

        def chained(before: bytes | None, tokens: tuple[int, ...], salt: str | None) -> bytes:
            return block_hash(algorithm, before, tokens, salt)

        self._hash: Callable[[bytes | None, tuple[int, ...], str | None], bytes]
        self._hash = lru_cache(_REMEMBERED)(chained)

    def __call__(self, ids: Sequence[int], salt: str | None = None) -> list[int]:
        """64 bits of the hash of each full block."""
        size, before, found = self.size, None, []
        for start in range(0, len(ids) - size + 1, size):
            first = salt if before is None else None  # later blocks are shared with it in them
            before = self._hash(before, tuple(ids[start : start + size]), first)
            found.append(short(before))
        return found
