"""No grammar delays the engine's steps: one that would is computed beside them, or given up."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
import xgrammar
from vllm.v1.structured_output.backend_xgrammar import XgrammarGrammar

from agentrt.errors import CallRejectedError
from agentrt.executors.vllm._compat.grammars import compile_aside
from agentrt.executors.vllm.calls import check_compiled
from agentrt.executors.vllm.compiling import MASKS_S, TRIED, SlowGrammarError, try_masks, watch
from agentrt.request import Call, CallSpec, Identity
from agentrt.request.sampling import Sampling

pytestmark = pytest.mark.engine

CHANCE = random.Random(7)
WORDS = {bytes(CHANCE.choices(b"abcdefghij", k=CHANCE.randint(2, 9))) for _ in range(20_000)}
VOCABULARY = [bytes([code]) for code in range(256)] + sorted(WORDS) + [b"</s>"]


def compiled(pattern: str) -> Any:
    info = xgrammar.TokenizerInfo(VOCABULARY, stop_token_ids=[len(VOCABULARY) - 1])
    made = xgrammar.GrammarCompiler(info, max_threads=1).compile_regex(pattern)
    return XgrammarGrammar(len(VOCABULARY), xgrammar.GrammarMatcher(made), made)


def room() -> torch.Tensor:
    return torch.zeros((1, len(VOCABULARY) // 32 + 1), dtype=torch.int32)


class Clock:
    """A clock that tests set. Each mask of a grammar takes ``mask_s``."""

    def __init__(self) -> None:
        self.now = self.mask_s = 0.0

    def __call__(self) -> float:
        return self.now


class Grammar:
    """A grammar that allows the tokens 3 and 35, and ends after ``tokens`` tokens."""

    vocab_size = 40

    def __init__(self, clock: Clock, tokens: int = 100) -> None:
        self._clock, self._tokens = clock, tokens
        self.accepted: list[int] = []
        self.seen: set[int] = set()
        self.masks = 0

    def fill_bitmask(self, mask: torch.Tensor, row: int) -> None:
        self.masks += 1
        self._clock.now += self._clock.mask_s
        mask[row] = torch.tensor([1 << 3, 1 << 3 | 1 << 20])

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self.accepted += tokens
        self.seen.update(tokens)
        return True

    def is_terminated(self) -> bool:
        return len(self.accepted) >= self._tokens

    def reset(self) -> None:
        self.accepted.clear()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def two_words() -> torch.Tensor:
    return torch.zeros((1, 2), dtype=torch.int32)


def test_a_grammar_is_tried_with_tokens_that_it_allows(clock: Clock) -> None:
    grammar = Grammar(clock)
    try_masks(grammar, two_words(), clock)
    assert (grammar.masks, grammar.seen, grammar.accepted) == (TRIED, {3, 35}, [])


def test_one_that_ends_is_tried_to_its_end(clock: Clock) -> None:
    try_masks(grammar := Grammar(clock, tokens=2), two_words(), clock)
    assert grammar.masks == 2


def test_masks_that_take_too_long_together_are_refused_at_once(clock: Clock) -> None:
    clock.mask_s = MASKS_S / 3
    with pytest.raises(SlowGrammarError, match="masks take more than"):
        try_masks(grammar := Grammar(clock), two_words(), clock)
    assert grammar.masks == 4


def test_a_grammar_accepts_nothing_after_a_mask_that_took_too_long(clock: Clock) -> None:
    grammar = watch(Grammar(clock), clock)
    clock.mask_s = MASKS_S
    grammar.fill_bitmask(two_words(), 0)
    assert grammar.accept_tokens("r", [3])
    clock.mask_s = 2 * MASKS_S
    grammar.fill_bitmask(two_words(), 0)
    clock.mask_s = 0.0
    grammar.fill_bitmask(two_words(), 0)
    assert not grammar.accept_tokens("r", [3])
    assert grammar.accepted == [3]


def test_vllms_grammars_are_tried_and_come_back_to_their_beginning() -> None:
    grammar = watch(compiled("[a-c]{3}(x|yz)*"))
    try_masks(grammar, mask := room())
    grammar.fill_bitmask(mask, 0)
    first = mask.clone()
    compiled("[a-c]{3}(x|yz)*").fill_bitmask(mask, 0)
    assert torch.equal(first, mask)
    assert grammar.accept_tokens("r", [ord("a")])
    assert not grammar.accept_tokens("r", [ord("x")])


def test_a_short_pattern_that_would_stop_an_engine_is_refused() -> None:
    with pytest.raises(SlowGrammarError):
        try_masks(compiled("((([^x]*)?([^x]*)?)*([^x]?)*)*"), room())


def test_a_slow_grammar_is_compiled_and_tried_once() -> None:
    compiled_patterns: list[str] = []

    def create(request: Any) -> Any:
        pattern = request.structured_output_request.structured_output_key
        compiled_patterns.append(pattern)
        return compiled(pattern)

    manager = SimpleNamespace(
        executor=ThreadPoolExecutor(1),
        backend=SimpleNamespace(allocate_token_bitmask=lambda rows: room()),
        _create_grammar=create,
    )
    compile_aside(SimpleNamespace(structured_output_manager=manager), lambda request: "tenant")

    def asks_for(pattern: str) -> Any:
        return SimpleNamespace(
            structured_output_request=SimpleNamespace(structured_output_key=pattern)
        )

    slow = "((([^x]*)?([^x]*)?)*([^x]?)*)*"
    for _ in range(2):
        with pytest.raises(SlowGrammarError, match="masks take more than"):
            manager._create_grammar(asks_for(slow))
    assert compiled_patterns == [slow]
    assert manager._create_grammar(asks_for("[a-c]+")).accept_tokens("r", [ord("a")])


def test_what_the_core_gave_up_is_told_as_the_clients_mistake() -> None:
    call = Call(Identity("p/0", "p", "t"), CallSpec(max_tokens=1))
    held = SimpleNamespace(structured_outputs=object())
    ended = SimpleNamespace(finish_reason="error")
    with pytest.raises(CallRejectedError, match="takes too long for each token"):
        check_compiled(call, held, ended)
    forbidding = SimpleNamespace(structured_outputs=object(), allowed_token_ids=[5], bad_words=[])
    with pytest.raises(CallRejectedError, match=r"If allowed_token_ids forbid every token"):
        check_compiled(call, forbidding, ended)
    check_compiled(call, SimpleNamespace(structured_outputs=None), ended)
    check_compiled(call, held, SimpleNamespace(finish_reason="stop"))
    of_context = Call(call.identity, CallSpec(max_tokens=1, sampling=Sampling()))
    check_compiled(of_context, held, ended)  # it knows better what it had asked for
