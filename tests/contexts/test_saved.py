"""Saved contexts are each tenant's own, and within a budget."""

from __future__ import annotations

from array import array

import pytest

from agentrt.contexts.saved import ENTRY, SavedContext, SavedContexts
from agentrt.errors import ConfigError


def test_saved_contexts_keep_within_their_tenants_budget() -> None:
    kept = SavedContexts(budget=40 + ENTRY)
    kept.save("anna", "one", SavedContext(array("I", range(6))))
    kept.save("ben", "one", SavedContext(array("I", range(10))))
    with pytest.raises(ConfigError, match=f"needs {20 + ENTRY} bytes, and .* take {24 + ENTRY} of"):
        kept.save("anna", "two", SavedContext(array("I", range(5))))
    kept.save("anna", "one", SavedContext(array("I", range(10))))  # in place of itself
    kept.forget("anna", "one")
    kept.save("anna", "two", SavedContext(array("I", range(10))))
    assert list(kept.open("anna", "two").token_ids) == list(range(10))


@pytest.mark.parametrize("name", ["", "n" * 129])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="allowed are 1 to 128"):
        SavedContexts().save("anna", name, SavedContext(array("I")))
