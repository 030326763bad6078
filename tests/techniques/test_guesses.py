"""What speculative decoding guesses, and how a watermark's half of the tokens lies."""

from __future__ import annotations

from speculative import look_up


def test_a_guess_is_what_followed_the_same_tokens_last() -> None:
    assert look_up([1, 2, 3, 9, 1, 2, 3, 8, 7, 1, 2, 3], most=2) == [8, 7]
    assert look_up([4, 3, 1, 9, 3], most=2) == [1, 9]
    assert look_up([1, 2, 3]) == []
    assert look_up([1]) == []
