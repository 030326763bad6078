"""Work that a server does by itself, again and again: what fails is logged, and tried again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from agentrt import tracking

STUBBORN = 3
"""The server is not ready while some work has failed so many times in a row."""
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
_LONGEST_TEXT = 500
_STEADY_S = 30.0
"""Work without an error for so many seconds has recovered."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Fault:
    """The last error of some work, and how many there were in a row."""

    text: str
    count: int
    since: float = 0.0


class Background:
    """The tasks of one server. A task waits ``rest_s`` seconds after its first error, and twice as
    long after each further one, up to a minute.
    """

    def __init__(self, rest_s: float = _FIRST_REST_S) -> None:
        self._rest_s = rest_s
        self._faults: dict[str, _Fault] = {}

    @contextlib.asynccontextmanager
    async def doing(
        self, name: str, work: Callable[[], Awaitable[None]], every_s: float = 0.0
    ) -> AsyncIterator[None]:
        """Do ``work`` every ``every_s`` seconds until the block ends. It may go on for ever."""
        with tracking.outside():
            task = asyncio.create_task(self._go_on(name, work, every_s), name=f"agentrt/{name}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            self._faults.pop(name, None)

    def failing(self) -> Mapping[str, str]:
        """The errors of what does not go on now, by its name."""
        return {name: one.text for name, one in self._current().items()}

    def stubborn(self) -> list[str]:
        """The names of what fails again and again."""
        return [name for name, one in self._current().items() if one.count >= STUBBORN]

    def _current(self) -> dict[str, _Fault]:
        """The faults that still count. Work that goes on for ever never says that it is well."""
        steady = asyncio.get_running_loop().time() - _STEADY_S
        return {name: one for name, one in self._faults.items() if one.since > steady}

    async def _go_on(self, name: str, work: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            try:
                await work()
                self.went_well(name)
                await asyncio.sleep(every_s)
            except Exception as error:
                await asyncio.sleep(self.failed(name, error))

    def went_well(self, name: str) -> None:
        """The work of that name was done."""
        self._faults.pop(name, None)

    def failed(self, name: str, error: Exception) -> float:
        """The work of that name failed. Returns the seconds until the next try."""
        before = self._current().get(name)
        count = 1 if before is None else before.count + 1
        rest_s = min(_LONGEST_REST_S, self._rest_s * 2.0 ** (count - 1))
        first_line = str(error).strip().partition("\n")[0]
        text = f"{type(error).__name__}: {first_line}"[:_LONGEST_TEXT]
        if count & (count - 1) == 0:  # failures 1, 2, 4, 8 and so on: most are the same
            _log.warning(
                "background task %s failed, for the %d. time in a row, and is tried again: %s",
                *(name, count, text),
                exc_info=error if count == 1 else None,
            )
        now = asyncio.get_running_loop().time()
        self._faults[name] = _Fault(text, count, now + rest_s)
        return rest_s
