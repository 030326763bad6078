"""Servers run on uvloop, as `agentrt serve` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

uvloop = pytest.importorskip("uvloop")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of the tests here."""
    return {"uvloop": uvloop.new_event_loop}
