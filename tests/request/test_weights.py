"""Versions of the weights: which version wrote each token, and the salts of blocks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrt.errors import ConfigError
from agentrt.request.weights import MODES, Versions, changed, check_mode, salted, version_spans

HISTORIES = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40)
"""What happens to a call: it writes some tokens, and then the weights are updated or not."""


def of_each(versions: Versions, tokens: int) -> list[int]:
    spans = version_spans(versions, tokens)
    return [version for start, end, version in spans for _ in range(start, end)]


@given(HISTORIES, st.integers(0, 3))
def test_each_token_has_the_version_that_was_current_when_it_was_written(
    history: list[tuple[int, bool]], first: int
) -> None:
    version, written = first, list[int]()
    versions: list[list[int]] = [[0, first]] if first else []
    for tokens, updates in history:
        written += [version] * tokens
        if updates:
            versions = changed(versions, len(written), version, version + 1)
            version += 1
    spans = [*version_spans(versions, len(written))]
    assert of_each(versions, len(written)) == written
    assert all(before[2] < after[2] for before, after in pairwise(spans))


@given(st.integers(0, 30), st.integers(0, 30))
def test_an_output_that_its_reader_cut_off_has_only_the_versions_of_its_own_tokens(
    tokens: int, read: int
) -> None:
    versions = changed(changed([], 10, 0, 1), 20, 1, 2)
    whole, part = of_each(versions, max(tokens, read)), of_each(versions, read)
    assert part == whole[:read]


SALTS = st.none() | st.sampled_from(["", "a", "tenant", "weights", "1"])


@given(SALTS, SALTS, st.integers(0, 20), st.integers(0, 20))
def test_different_salts_or_versions_share_no_blocks(
    salt: str | None, other: str | None, version: int, later: int
) -> None:
    is_same = (salt, version) == (other, later)
    assert (salted(salt, version) == salted(other, later)) == is_same


def test_nothing_changes_before_the_first_update() -> None:
    assert [salted(salt, 0) for salt in (None, "", "tenant")] == [None, "", "tenant"]
    assert [*version_spans((), 3)] == [(0, 3, 0)]
    assert not [*version_spans((), 0)]


@pytest.mark.parametrize("mode", ["", "Keep", "retract"])
def test_an_unknown_mode(mode: str) -> None:
    with pytest.raises(ConfigError, match="available: abort, wait, keep"):
        check_mode(mode)
    for known in MODES:
        check_mode(known)
