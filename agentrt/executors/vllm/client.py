"""Sends control messages from an embedded engine to the scheduler in its core.

`agentrt.executors.vllm.engine_core.control` answers them.
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
    """The part of an engine that talks to agentrt's scheduler, whose settings are
    ``scheduling``.
    """

    def __init__(self, scheduling: SchedulerConfig) -> None:
        self._llm: AsyncLLM | None = None
        self._scheduling = scheduling
        self._notes = Outbox(lambda notes: self._control("boundary", notes))
        self._ended: list[str | ProgramTotals] = []
        self._ending: asyncio.Task[None] | None = None
        """The task that will send the next message about ended programs; None if there is none.

        Until the task starts, further programs that end are added to its message.
        """
        self._telling: set[asyncio.Task[None]] = set()

    # -- programs ----------------------------------------------------------------------

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Report the end of a program. Programs that end in the same pass of the event loop share a
        message.
        """
        self._ended.append(program_id if totals is None else totals)
        if self._ending is None:
            with tracking.outside():  # the task belongs to no program
                self._ending = asyncio.create_task(self._tell_ends(), name="agentrt/ends")
                self._telling.add(self._ending)
                self._ending.add_done_callback(self._telling.discard)
        ending = self._ending
        await asyncio.wait([ending])
        if not ending.cancelled():  # `close_outbox` cancels it, since the engine is closing
            ending.result()

    async def _tell_ends(self) -> None:
        ended, self._ended, self._ending = self._ended, [], None
        await self._control("ends", ended)

    def notify(self, note: Notification) -> None:
        # Only retention and admission use notifications.
        if self._scheduling.retention != "lru" or self._scheduling.admission != "off":
            self._notes.post(note)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        await self._control("know", learned)
        return True

    # -- calls -------------------------------------------------------------------------

    async def aborted(self, call_id: str) -> CallReport:
        values = await self._control("report", call_id)
        return read_report(values) if values else CallReport()

    async def snapshot(self) -> Mapping[str, Any]:
        values = await self._control("snapshot")
        return values if isinstance(values, dict) else {}

    # -- the scheduler -----------------------------------------------------------------

    async def configure(self, config: SchedulerConfig) -> None:
        """Change the scheduler's settings. Raises `ConfigError` if the engine refuses them, for
        example because calls are unfinished.
        """
        try:
            await ask_scheduler(self._engine(), "configure", config.to_dict())
        except Exception as error:
            raise ConfigError(f"the engine refuses these settings: {error}") from error
        self._scheduling = config

    async def forget_prefixes(self) -> None:
        """Empty the prefix cache."""
        await self._engine().reset_prefix_cache()

    # -- inside ------------------------------------------------------------------------

    async def close_outbox(self) -> None:
        """Drop messages that have not been sent yet."""
        await self._notes.close()
        self._ending = None
        for telling in self._telling:
            telling.cancel()

    def _engine(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineDiedError("the engine is not running")
        return self._llm

    async def _control(self, op: str, argument: Any = None) -> Any:
        """Send a control message, and return the answer; None if the engine is not running, or
        dies.
        """
        if self._llm is None or self._llm.errored:
            return None
        from vllm.v1.engine.exceptions import EngineDeadError

        with contextlib.suppress(EngineDeadError):
            return await ask_scheduler(self._llm, op, argument)
        return None
