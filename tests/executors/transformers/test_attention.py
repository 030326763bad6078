"""The tokens that a token sees change what follows it, and no others do. One forward pass gives the
same as many.

In a model of two layers, a token has an influence up to twice the window's distance, because each
layer passes on what the layer below saw.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentrt.contexts.attention import Attention
from agentrt.errors import CallRejectedError, ConfigError
from agentrt.executors.transformers.model import CausalModel, kept, seen
from tests.executors.transformers.models import config_of, model_of

pytestmark = pytest.mark.engine

WINDOW = 6
KINDS = [
    Attention(WINDOW),
    Attention(WINDOW, sinks=3),
    Attention(WINDOW, sinks=2, chunk=5),
    Attention(4, chunk=8, summary=2),
]


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300) for _ in range(count)]


def after(model: CausalModel, attention: Attention | None, ids: list[int]) -> torch.Tensor:
    """Return the logits after a text."""
    cache = model.start(attention)
    for start in range(0, len(ids), 256):
        logits = model.extend(cache, ids[start : start + 256])
    return logits[-1]


def changes(model: CausalModel, attention: Attention, ids: list[int], place: int) -> bool:
    """Return whether another token at ``place`` changes what follows the text."""
    before = after(model, attention, ids)
    others = [[*ids[:place], (ids[place] + n) % 300, *ids[place + 1 :]] for n in (1, 50, 150)]
    found = [float((after(model, attention, other) - before).abs().max()) for other in others]
    return max(found) > 1e-5


# -- the rule --------------------------------------------------------------------------


ATTENTIONS = st.builds(
    Attention,
    st.integers(1, 9),
    st.integers(0, 4),
    st.none() | st.integers(3, 9),
    st.integers(1, 3),
)


@given(ATTENTIONS)
def test_a_mask_is_what_each_token_sees(attention: Attention) -> None:
    at = torch.arange(40)
    expected = [[attention.sees(query, key) for key in range(40)] for query in range(40)]
    assert seen(attention, at, at).tolist() == expected
    assert kept(attention, at).tolist() == [attention.keeps(key) for key in range(40)]


@given(ATTENTIONS)
def test_what_is_not_seen_once_is_never_seen_again(attention: Attention) -> None:
    for key in range(40):
        series = [attention.sees(query, key) for query in range(key, 60)]
        assert series[0]
        assert all(before or not now for before, now in pairwise(series))


def test_hierarchical_attention_keeps_the_end_of_each_chunk() -> None:
    attention = Attention(4, sinks=1, chunk=5, summary=2)
    found = [key for key in range(22) if attention.sees(21, key)]
    assert found == [0, 3, 4, 8, 9, 13, 14, 18, 19, 20, 21]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"window": 0}, "window is 0; it must be an integer of at least 1"),
        ({"window": 4, "sinks": -1}, "sinks is -1; it must be an integer of at least 0"),
        ({"window": 4, "sinks": 2.5}, "sinks is 2.5"),
        ({"window": 4, "chunk": 0}, "chunk is 0; it must be an integer of at least 1"),
        (
            {"window": 4, "chunk": 3, "summary": 4},
            "a summary of 4 tokens is larger than its chunk of 3",
        ),
    ],
)
def test_an_attention_that_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Attention(**fields)


# -- on a model ------------------------------------------------------------------------


@pytest.mark.parametrize("attention", [None, *KINDS])
def test_one_forward_gives_what_many_do(tiny: CausalModel, attention: Attention | None) -> None:
    ids, cache, slow = tokens(50), tiny.start(attention), tiny.start(attention)
    at_once = tiny.extend(cache, ids, len(ids))
    one_by_one = torch.cat([tiny.extend(slow, [token]) for token in ids])
    # Sums are taken in another order, which on some processors makes a difference of .001.
    torch.testing.assert_close(at_once, one_by_one, atol=3e-3, rtol=0)
    assert cache.positions == slow.positions


def test_a_window_wider_than_the_text_is_the_models_own_attention(tiny: CausalModel) -> None:
    ids = tokens(40)
    for attention in (Attention(40), Attention(40, sinks=4), Attention(40, chunk=8)):
        found = after(tiny, attention, ids)
        torch.testing.assert_close(found, after(tiny, None, ids), atol=1e-3, rtol=0)


def test_a_token_beyond_all_windows_changes_nothing(tiny: CausalModel) -> None:
    ids, reach, attention = tokens(40), 2 * (WINDOW - 1), Attention(WINDOW)
    assert all(changes(tiny, attention, ids, 39 - back) for back in (0, WINDOW - 1, reach))
    assert not any(changes(tiny, attention, ids, 39 - back) for back in (reach + 1, 20, 39))


def test_a_sink_is_never_out_of_sight(tiny: CausalModel) -> None:
    ids, attention = tokens(40), Attention(WINDOW, sinks=2)
    assert [changes(tiny, attention, ids, place) for place in (0, 1, 20)] == [True, True, False]


def test_a_chunk_is_heard_of_through_its_summary(tiny: CausalModel) -> None:
    """The summary at 15 has seen the tokens from 12 on. The first half of its chunk has no
    influence.
    """
    ids, attention = tokens(60), Attention(4, chunk=8)
    heard = [place for place in range(8, 16) if changes(tiny, attention, ids, place)]
    assert heard[-1] == 15
    assert len(heard) > 1
    assert set(heard) <= {12, 13, 14, 15}
    assert not any(changes(tiny, Attention(4), ids, place) for place in range(8, 16))


def test_positions_are_those_in_the_cache(tiny: CausalModel) -> None:
    """A token is equally near to its sinks, however long the text in between is. A text may be
    longer than the model's context.
    """
    assert tiny.max_len == 2048
    attention, start, end = Attention(WINDOW, sinks=3), tokens(3, 1), tokens(2 * WINDOW, 2)
    short = after(tiny, attention, [*start, *tokens(30), *end])
    long = after(tiny, attention, [*start, *tokens(3000), *end])
    torch.testing.assert_close(short, long, atol=1e-3, rtol=0)
    assert tiny.longest(attention) is None
    assert tiny.longest(Attention(4, chunk=5)) == tiny.longest(Attention(2048, sinks=1)) == 2048


@pytest.mark.parametrize("attention", KINDS)
def test_the_cache_has_what_is_seen_later_and_no_more(
    tiny: CausalModel, attention: Attention
) -> None:
    cache = tiny.start(attention)
    for token in tokens(60):
        tiny.extend(cache, [token])
        length = len(cache.ids)
        expected = [key for key in range(length) if attention.sees(length, key)]
        assert cache.positions == expected
        assert {layer.keys.shape[2] for layer in cache.layers.layers} == {len(expected)}


# -- other models ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Qwen3Config", "GPTNeoXConfig", "PhiConfig", "CohereConfig"])
def test_positions_move_in_models_that_rotate(kind: str) -> None:
    """Rotary embeddings rotate halves or pairs, and the whole head or a part; heads are grouped or
    not.
    """
    model = model_of(config_of(kind))
    assert model.moves
    test_one_forward_gives_what_many_do(model, Attention(WINDOW, sinks=3))
    test_a_token_beyond_all_windows_changes_nothing(model)


def test_a_model_with_scaled_rotation_moves_too() -> None:
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = model_of(config_of("LlamaConfig", rope_parameters={**scaled, "rope_theta": 1e4}))
    assert model.moves


def test_a_model_with_learned_positions_keeps_those_of_the_text() -> None:
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=301, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    model = model_of(config)
    assert not model.moves
    assert model.longest(Attention(WINDOW)) == 128
    test_a_token_beyond_all_windows_changes_nothing(model)
    test_one_forward_gives_what_many_do(model, Attention(WINDOW, sinks=3))


def test_a_model_whose_layers_have_windows_of_their_own_is_refused_an_attention() -> None:
    model = model_of(config_of("MistralConfig", sliding_window=8))
    model.extend(model.start(), tokens(20))
    with pytest.raises(CallRejectedError, match="'mistral' does not support attention="):
        model.start(Attention(WINDOW))
