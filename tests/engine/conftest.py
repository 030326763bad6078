"""What tests of real engines share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.early import needs_of_core
from tests.engine.forked import ForkedCore, loading_in


@pytest.fixture(autouse=True, scope="session")
def _cores_are_forked() -> Iterator[None]:
    """Engines of this process start in two seconds of a core's time; those of commands in nine."""
    with loading_in(lambda: ForkedCore(*needs_of_core(on_gpu=False))):
        yield
