"""The shortcuts through vLLM's allocation give exactly the blocks that vLLM gives without them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentrt.executors.vllm._compat.pool import shorten_allocation
from agentrt.lab.engine.headless import (
    BLOCK_SIZE,
    make_request,
    make_scheduler,
    stock_scheduler,
)
from tests.executors.vllm.test_model_runner import MODELS, WINDOW

pytestmark = pytest.mark.engine

LONGEST = 12 * BLOCK_SIZE
BLOCKS = 20


class Cache:
    """A KV cache of vLLM's, and the calls that use it."""

    def __init__(self, *, short: bool) -> None:
        scheduler = make_scheduler(
            stock_scheduler(), max_num_seqs=4, blocks=BLOCKS, max_model_len=LONGEST
        )
        if short:
            shorten_allocation(scheduler)
        self.manager: Any = scheduler.kv_cache_manager
        self.calls: dict[str, Any] = {}

    def begin(self, name: str, prompt: list[int], later: int) -> Any:
        """Take the cached part of a prompt, and slots for all but its last ``later`` tokens."""
        call = self.calls[name] = make_request(name, prompt, BLOCK_SIZE, max_tokens=LONGEST)
        found, cached, _ = self.manager.get_computed_blocks(call)
        new = max(len(prompt) - cached - later, 1)
        given = self.manager.allocate_slots(
            call, new, num_new_computed_tokens=cached, new_computed_blocks=found
        )
        call.num_computed_tokens = cached + new if given is not None else 0
        return self.told(given)

    def go_on(self, name: str, tokens: int, drafts: int, kept: int, **more: Any) -> Any:
        """Compute so many tokens, with room for ``drafts``; only the first ``kept`` count."""
        call = self.calls[name]
        given = self.manager.allocate_slots(call, tokens, num_lookahead_tokens=drafts, **more)
        if given is not None:
            call.num_computed_tokens += kept
            missing = call.num_computed_tokens + 1 - call.num_tokens
            call.append_output_token_ids([7] * max(missing, 0))
        return self.told(given)

    def end(self, name: str) -> Any:
        self.manager.free(self.calls.pop(name))
        return self.told(None)

    def told(self, given: Any) -> Any:
        """Return what a call was given, and the whole state of the cache."""
        pool, (group,) = self.manager.block_pool, self.manager.coordinator.single_type_managers
        return (
            None if given is None else given.get_block_ids(),
            [block.block_id for block in pool.free_block_queue.get_all_free_blocks()],
            [block.block_hash for block in pool.blocks],
            {name: self.manager.get_block_ids(name) for name in self.calls},
            dict(group.num_cached_block),
        )


def act(rng: random.Random, names: list[str]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return what happens next to the calls of these ``names``."""
    if len(names) < 4 and rng.random() < 0.2:
        length = rng.randint(2, 8 * BLOCK_SIZE)
        return (
            "begin",
            (f"call{rng.random()}", [rng.randint(1, 2)] * length, rng.randint(1, length)),
            {},
        )
    name = rng.choice(names)
    if rng.random() < 0.02:
        return "end", (name,), {}
    tokens = rng.choice((1, 1, 1, 2, 5, BLOCK_SIZE))
    more = {"full_sequence_must_fit": True} if rng.random() < 0.1 else {}
    return "go_on", (name, tokens, rng.choice((0, 0, 3)), rng.randint(1, tokens)), more


@pytest.mark.parametrize("seed", range(8))
def test_calls_get_the_blocks_that_vllm_gives_them(seed: int) -> None:
    """This holds with refused drafts, prompts in pieces, and a cache that is full at times."""
    rng = random.Random(seed)
    stock, short = Cache(short=False), Cache(short=True)
    refused = 0
    for _ in range(400):
        names = [name for name, call in stock.calls.items() if call.num_computed_tokens]
        what, args, more = act(rng, names) if names else ("begin", ("first", [1] * 40, 3), {})
        told = getattr(stock, what)(*args, **more)
        assert getattr(short, what)(*args, **more) == told
        refused += what != "end" and told[0] is None
        for name, call in list(stock.calls.items()):
            if not call.num_computed_tokens or call.num_tokens > LONGEST - 2 * BLOCK_SIZE:
                assert short.end(name) == stock.end(name)
    assert refused


@pytest.mark.parametrize("short", [False, True])
def test_a_call_that_must_fit_as_a_whole_is_refused_though_its_next_token_fits(short: bool) -> None:
    cache = Cache(short=short)
    cache.begin("other", [8] * LONGEST, 0)
    cache.begin("piece", [9] * LONGEST, LONGEST - 5)
    assert cache.go_on("piece", 1, 0, 1, full_sequence_must_fit=True)[0] is None
    assert cache.go_on("piece", 1, 0, 1)[0] is not None
    assert (
        cache.manager.allocate_slots(cache.calls["piece"], 1, 0, None, 1, 0, False, 0, True) is None
    )
    with pytest.raises(ValueError, match="num_new_tokens must be greater than 0"):
        cache.go_on("piece", 0, 0, 0)


@pytest.mark.parametrize("model", [*MODELS, "window"])
def test_only_full_attention_has_a_short_way(model: str) -> None:
    kinds = MODELS.get(model, (WINDOW,))
    scheduler = make_scheduler(stock_scheduler(), max_num_seqs=4, blocks=40, kinds=kinds)
    shorten_allocation(scheduler)
    manager = scheduler.kv_cache_manager
    short = "allocate_slots" in vars(manager), "cache_blocks" in vars(manager.coordinator)
    assert short == ((model == "full"),) * 2


def test_blocks_that_are_found_in_part_have_none() -> None:
    scheduler = make_scheduler(stock_scheduler(), max_num_seqs=4, blocks=40)
    scheduler.kv_cache_manager.block_pool.hash_block_size = BLOCK_SIZE // 2
    shorten_allocation(scheduler)
    assert "allocate_slots" not in vars(scheduler.kv_cache_manager)
