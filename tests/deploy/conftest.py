"""What the tests of deploy/ read: Compose's file as Docker reads it."""

from __future__ import annotations

import pytest

from tests.deploy.composed import Composed, composed


@pytest.fixture(scope="session")
def services() -> Composed:
    return composed()
