"""Programs are tracked on asyncio's own loop, and on that of `agentrt serve`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops of the tests here."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
