"""A model without an engine, and the programs that the follower found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentrt.integrations.langgraph import follow
from agentrt.runtime.run import Run
from tests.integrations.langgraph.probe import Probe, strict, watched


@pytest.fixture
def model() -> Probe:
    strict(follow())
    return Probe()


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    follow()
    with watched() as runs:
        yield runs
