"""A journal is about as large as what was said, however long a chat or a context becomes."""

from __future__ import annotations

import pytest

from benchmarks.journal_size import KINDS, measure


@pytest.mark.parametrize("name", KINDS)
def test_twice_the_turns_are_twice_the_journal(name: str) -> None:
    short, long = measure(name, (16, 32))
    assert [row[:2] for row in (short, long)] == [[name, "16"], [name, "32"]]
    said, size, ratio = (float(row) for row in long[2:5])
    assert ratio < 2
    assert size < 2.1 * float(short[3])
    assert said > 0.1
