"""Saved contexts are each tenant's own, and within a budget."""

from __future__ import annotations

from array import array

import pytest

from agentrt.contexts.saved import SavedContext, SavedContexts
from agentrt.errors import ConfigError


def test_saved_contexts_keep_within_their_tenants_budget() -> None:
    kept = SavedContexts(budget=40)
    kept.save("anna", "one", SavedContext(array("I", range(6))))
    kept.save("ben", "one", SavedContext(array("I", range(10))))
    with pytest.raises(ConfigError, match="'two' has 20 bytes, and 24 of 40 are taken"):
        kept.save("anna", "two", SavedContext(array("I", range(5))))
    kept.save("anna", "one", SavedContext(array("I", range(10))))  # in place of itself
    kept.forget("anna", "one")
    kept.save("anna", "two", SavedContext(array("I", range(10))))
    assert list(kept.open("anna", "two").token_ids) == list(range(10))
