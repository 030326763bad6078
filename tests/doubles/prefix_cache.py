"""vLLM's KV-cache manager without an engine: which tokens of a prompt are cached already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BLOCK_SIZE = 16


@dataclass(slots=True)
class Cached:
    """A call in the cache: the ``count`` of its prompt's tokens that were cached before it."""

    count: int
    _cache: PrefixCache
    _request: Any

    def add(self, tokens: Sequence[int]) -> None:
        """Take the output into the cache. The last token is sampled, and not computed."""
        self._request.append_output_token_ids(list(tokens))
        computed = self._request.num_tokens - 1 - self._request.num_computed_tokens
        if computed > 0:
            self._cache.compute(self._request, computed)


class PrefixCache:
    """The KV cache of an engine with ``tokens`` tokens of room, in blocks of 16.

    Hashes, hits, and the eviction of the least recently used blocks are vLLM's own.
    """

    def __init__(self, tokens: int = 2_000_000) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        config = KVCacheConfig(
            num_blocks=tokens // BLOCK_SIZE + 1,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self._manager = KVCacheManager(config, tokens, BLOCK_SIZE, BLOCK_SIZE)

    @contextmanager
    def holding(self, call_id: str, prompt: Sequence[int], salt: str | None) -> Iterator[Cached]:
        """Hold the blocks of a call while it runs. Afterwards others may take them."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            request_id=call_id,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )
        blocks, count, _ = self._manager.get_computed_blocks(request)
        self.compute(request, len(prompt) - count, count, blocks)
        try:
            yield Cached(count, self, request)
        finally:
            self._manager.free(request)

    def compute(self, request: Any, new: int, cached: int = 0, blocks: Any = None) -> None:
        """Compute ``new`` tokens of a request behind those that are computed or ``cached``."""
        held = self._manager.allocate_slots(request, new, cached, blocks)
        assert held is not None, "the prefix cache is too small for the calls that run at once"
        request.num_computed_tokens += cached + new
