"""What tests of real engines share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.forked import ForkedCore


@pytest.fixture(autouse=True, scope="session")
def _cores_are_forked() -> Iterator[None]:
    """Engines of this process start in two seconds of a core's time; those of commands in nine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrt.executors.vllm.engine.EarlyCore", ForkedCore)
        yield
