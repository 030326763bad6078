"""Background tasks of a server, which run repeatedly. A failed task is logged and retried."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from agentrt import tracking
from agentrt.steady import backoff_s

STUBBORN = 3
"""The server is not ready while a task has failed this many times in a row."""
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
_LONGEST_TEXT = 500
_STEADY_S = 30.0
"""Seconds without a new error, from the retry of a task on, after which the task has recovered."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Fault:
    """The last error of a task, and the number of errors in a row.

    ``since`` is the time (seconds of the event loop) of the retry after the last error. The fault
    expires if no new error follows within `_STEADY_S` seconds after this time.
    """

    text: str
    count: int
    since: float = 0.0


class Background:
    """The background tasks of a server.

    A task waits ``rest_s`` seconds after its first error, and twice as long after each further
    error in a row, up to a minute.
    """

    def __init__(self, rest_s: float = _FIRST_REST_S) -> None:
        self._rest_s = rest_s
        self._faults: dict[str, _Fault] = {}

    @contextlib.asynccontextmanager
    async def doing(
        self, name: str, work: Callable[[], Awaitable[None]], every_s: float = 0.0
    ) -> AsyncIterator[None]:
        """Run ``work`` repeatedly until the ``with`` block ends, with a pause of ``every_s``
        seconds after each success.

        ``work`` may also never return; then it is cancelled at the end of the block.
        """
        with tracking.outside():
            task = asyncio.create_task(self._go_on(name, work, every_s), name=f"agentrt/{name}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._faults.pop(name, None)

    def failing(self) -> Mapping[str, str]:
        """Return the last errors of the tasks that fail now, by task name."""
        return {name: fault.text for name, fault in self._current().items()}

    def stubborn(self) -> list[str]:
        """Return the names of the tasks that have failed `STUBBORN` times in a row or more."""
        return [name for name, fault in self._current().items() if fault.count >= STUBBORN]

    def _current(self) -> dict[str, _Fault]:
        """Return the current faults.

        A fault expires after `_STEADY_S` seconds, because work that never returns cannot report
        success.
        """
        steady = asyncio.get_running_loop().time() - _STEADY_S
        return {name: fault for name, fault in self._faults.items() if fault.since > steady}

    async def _go_on(self, name: str, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
                self.went_well(name)
                await asyncio.sleep(every_s)
            except Exception as error:
                await asyncio.sleep(self.failed(name, error))

    def went_well(self, name: str) -> None:
        """Record that a task has succeeded."""
        self._faults.pop(name, None)

    def failed(self, name: str, error: Exception) -> float:
        """Record that a task has failed, and return the seconds until its retry."""
        before = self._current().get(name)
        count = 1 if before is None else before.count + 1
        rest_s = backoff_s(self._rest_s, count, _LONGEST_REST_S)
        first_line = str(error).strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first_line}"[:_LONGEST_TEXT]
        # Failures in a row are mostly equal, so log only the failures 1, 2, 4, 8 and so on.
        if count & (count - 1) == 0:
            _log.warning(
                "background task %s failed (%d in a row) and will be retried: %s",
                *(name, count, text),
                exc_info=error if count == 1 else None,
            )
        now = asyncio.get_running_loop().time()
        self._faults[name] = _Fault(text, count, now + rest_s)
        return rest_s
