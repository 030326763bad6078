"""The control messages between an embedded engine and the scheduler in its core.

The answers are those of `agentrt.executors.vllm.control`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrt import tracking
from agentrt.errors import ConfigError, EngineDiedError
from agentrt.executors.base import Executor, Notification
from agentrt.executors.outbox import Outbox
from agentrt.executors.vllm._compat.core import ask_scheduler
from agentrt.executors.vllm.reports import read_report
from agentrt.request import CallReport
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class CoreClient(Executor):
    """The part of an engine that talks to our scheduler, whose settings are ``scheduling``."""

    def __init__(self, scheduling: SchedulerConfig) -> None:
        self._llm: AsyncLLM | None = None
        self._scheduling = scheduling
        self._notes = Outbox(lambda notes: self._control("boundary", notes))
        self._ended: list[str | ProgramTotals] = []
        self._ending: asyncio.Task[None] | None = None
        """A task that has not started: programs that end now go into the same message."""
        self._telling: set[asyncio.Task[None]] = set()

    # -- programs ----------------------------------------------------------------------

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Programs that end in one pass of the event loop share one message."""
        self._ended.append(program_id if totals is None else totals)
        if self._ending is None:
            with tracking.outside():  # it is nobody's own
                self._ending = asyncio.create_task(self._tell_ends(), name="agentrt/ends")
                self._telling.add(self._ending)
                self._ending.add_done_callback(self._telling.discard)
        ending = self._ending
        await asyncio.wait([ending])
        if not ending.cancelled():  # by `close_outbox`: there is nothing left to tell
            ending.result()

    async def _tell_ends(self) -> None:
        ended, self._ended, self._ending = self._ended, [], None
        await self._control("ends", ended)

    def notify(self, note: Notification) -> None:
        # Where nothing is retained, nobody in the engine core would use it.
        if self._scheduling.retention != "lru" or self._scheduling.admission != "off":
            self._notes.post(note)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        await self._control("know", learned)
        return True

    # -- calls -------------------------------------------------------------------------

    async def aborted(self, call_id: str) -> CallReport:
        values = await self._control("aborted", call_id)
        return read_report(values) if values else CallReport()

    async def snapshot(self) -> Mapping[str, Any]:
        values = await self._control("snapshot")
        return values if isinstance(values, dict) else {}

    # -- the scheduler -----------------------------------------------------------------

    async def configure(self, config: SchedulerConfig) -> None:
        """Change the scheduler's settings. Raises `ConfigError` while calls are unfinished."""
        try:
            await ask_scheduler(self._engine(), "configure", config.to_dict())
        except Exception as error:
            raise ConfigError(f"the engine refuses these settings: {error}") from error
        self._scheduling = config

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache, so that the next calls find nothing computed."""
        await self._engine().reset_prefix_cache()

    # -- inside ------------------------------------------------------------------------

    async def close_outbox(self) -> None:
        """Drop what has not been sent yet."""
        await self._notes.close()
        self._ending = None
        for telling in self._telling:
            telling.cancel()

    def _engine(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDiedError("the engine is not running")
        return self._llm

    async def _control(self, op: str, argument: Any = None) -> Any:
        """A control message; None where the engine is gone and there is nothing to tell."""
        if self._llm is None or self._llm.errored:
            return None
        from vllm.v1.engine.exceptions import EngineDeadError

        with contextlib.suppress(EngineDeadError):
            return await ask_scheduler(self._llm, op, argument)
        return None
