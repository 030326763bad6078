"""Limits the time that token masks of a grammar take in the engine core's steps.

For each token of a structured output a step computes the mask of allowed tokens, and all calls in
the batch wait for it. With a pattern of 30 characters that can take a second. So a grammar is first
tried in its own thread, and a request ends when one of its masks takes too long later.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from agentrt.errors import AgentrtError

MOST_S = 0.25
"""CPU time for all masks of the trial together, and for one mask in a step."""
TRIED = 16
"""Tokens of the trial. With an ordinary schema they take some milliseconds together."""


class SlowGrammarError(AgentrtError):
    """A grammar's masks take too long."""


def try_masks(
    grammar: Any, mask: Any, clock: Callable[[], float] = time.thread_time, seed: int = 0
) -> None:
    """Feed one of vLLM's grammars some random tokens that it allows, then reset it.

    ``mask`` is a buffer for one mask. Raises `SlowGrammarError`.
    """
    chance, took_s = random.Random(seed), 0.0
    for _ in range(TRIED):
        if grammar.is_terminated():
            break
        began = clock()
        grammar.fill_bitmask(mask, 0)
        took_s += clock() - began
        if took_s > MOST_S:
            raise SlowGrammarError(f"its masks take more than {MOST_S:g} s for {TRIED} tokens")
        token = _any_of(mask, grammar.vocab_size, chance)
        if token is None or not grammar.accept_tokens("tried", [token]):
            break
    grammar.reset()


def _any_of(mask: Any, vocabulary: int, chance: random.Random) -> int | None:
    """A token that the mask allows."""
    import numpy as np  # it comes with vLLM, and commands load this module without one

    bits = np.unpackbits(mask.numpy().view(np.uint8), bitorder="little", count=vocabulary)
    allowed = np.flatnonzero(bits)
    return int(chance.choice(allowed)) if allowed.size else None


def watch(grammar: Any, clock: Callable[[], float] = time.thread_time) -> Any:
    """Make the grammar accept no token after a mask that took too long: vLLM ends its request."""
    fill, accept, longest_s = grammar.fill_bitmask, grammar.accept_tokens, 0.0

    def fill_bitmask(mask: Any, row: int) -> None:
        nonlocal longest_s
        began = clock()
        fill(mask, row)
        longest_s = max(longest_s, clock() - began)

    def accept_tokens(request_id: str, tokens: list[int]) -> bool:
        return longest_s <= MOST_S and bool(accept(request_id, tokens))

    grammar.fill_bitmask, grammar.accept_tokens = fill_bitmask, accept_tokens
    return grammar
