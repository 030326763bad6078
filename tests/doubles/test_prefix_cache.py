"""The prefix cache of scripted engines has whole blocks of prompts and outputs."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm")

from tests.doubles.prefix_cache import BLOCK_SIZE, PrefixCache


def test_whole_blocks_of_prompts_and_outputs_are_cached() -> None:
    cache, prompt, output = PrefixCache(4096), list(range(40)), list(range(100, 125))
    with cache.holding("a", prompt, None) as call:
        assert call.count == 0
        call.add(output)
    later = [*prompt, *output, *range(200, 210)]
    with cache.holding("b", later, None) as call:
        # The last token of an output is sampled, and computed with the next prompt only.
        assert call.count == (len(prompt) + len(output) - 1) // BLOCK_SIZE * BLOCK_SIZE
    with cache.holding("c", later, "salt") as call:
        assert call.count == 0
    with cache.holding("d", [7, *later], None) as call:
        assert call.count == 0


def test_the_blocks_that_were_used_last_stay() -> None:
    cache = PrefixCache(8 * BLOCK_SIZE)
    prompts = [[start, *range(1000, 1000 + 3 * BLOCK_SIZE)] for start in range(3)]
    for number, prompt in enumerate(prompts):
        with cache.holding(f"first {number}", prompt, None) as call:
            assert call.count == 0
    with cache.holding("last", prompts[2], None) as call:
        assert call.count == 3 * BLOCK_SIZE
    with cache.holding("evicted in part", prompts[0], None) as call:
        assert call.count < 3 * BLOCK_SIZE
