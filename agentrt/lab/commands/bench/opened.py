"""A runtime whose engine starts in silence, and stops whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agentrt.lab.commands.bench.values import note

if TYPE_CHECKING:
    from agentrt.cli.engine_log import EngineLog
    from agentrt.runtime import Runtime


@asynccontextmanager
async def opened(runtime: Runtime) -> AsyncIterator[EngineLog]:
    """Open ``runtime`` for the body, which gets the log that the engine writes to."""
    from agentrt.cli.engine_log import EngineLog

    note("loading the engine")
    with EngineLog(verbose=False) as log:
        try:
            with log.collect():
                await runtime.open()
            yield log
        finally:
            await runtime.close()
