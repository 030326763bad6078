"""Carries one call of a tool through: checks it, waits for its turn, tries it, tries it again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tenacity import AsyncRetrying, RetryCallState, stop_after_attempt, wait_exponential_jitter

from agentrt.errors import (
    InterruptExpiredError,
    ToolArgumentsError,
    ToolLostError,
    ToolResultError,
    UnknownToolError,
)
from agentrt.interrupts.tool import Tool, ToolContext, ToolRequest, ToolTransport

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 20.0
_AFTER_DEATHS = 2
"""Attempts that an idempotent tool gets beyond its retries when who ran it died."""
_NEVER_AGAIN = (ToolArgumentsError, UnknownToolError, ToolResultError)

Sleep = Callable[[float], Awaitable[None]]


class Observer(ToolContext, Protocol):
    """Told what becomes of a call: it waits, it starts, it is tried again."""

    def waits(self, why: str) -> None:
        """No attempt runs now."""

    def starts(self, attempt: int) -> None:
        """An attempt runs from now on."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """How calls are tried. ``sleep`` waits between attempts (seconds)."""

    sleep: Sleep = asyncio.sleep

    async def run(
        self,
        request: ToolRequest,
        transport: ToolTransport,
        observer: Observer,
        slots: asyncio.Semaphore | None = None,
    ) -> Any:
        """The result of the first attempt that succeeds.

        Raises `ToolArgumentsError` before anything is run, `InterruptExpiredError` past the
        tool's time, and otherwise what the last attempt raised.
        """
        tool = request.tool
        request = replace(request, arguments=tool.checked(request.arguments))
        retrying = AsyncRetrying(
            sleep=self.sleep,
            stop=stop_after_attempt(1 + tool.options.retries + _AFTER_DEATHS),
            wait=wait_exponential_jitter(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, jitter=_FIRST_PAUSE_S),
            retry=_may_retry(tool),
            before_sleep=lambda state: observer.waits(_why(state)),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                number = attempt.retry_state.attempt_number
                async with _turn(tool, slots, observer):
                    observer.starts(number)
                    result = await _bounded(replace(request, attempt=number), transport, observer)
                tool.check_result(result)
        return result


def _may_retry(tool: Tool) -> Callable[[RetryCallState], bool]:
    retries, idempotent = tool.options.retries, tool.options.idempotent

    def may(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        if not isinstance(error, Exception) or isinstance(error, _NEVER_AGAIN):
            return False
        if isinstance(error, ToolLostError) and not idempotent:
            return False  # it may have run
        more = _AFTER_DEATHS if isinstance(error, ToolLostError) else 0
        return state.attempt_number <= retries + more

    return may


def _why(state: RetryCallState) -> str:
    error = state.outcome.exception() if state.outcome is not None else None
    return f"attempt {state.attempt_number} failed: {error}"


@contextlib.asynccontextmanager
async def _turn(
    tool: Tool, slots: asyncio.Semaphore | None, observer: Observer
) -> AsyncIterator[None]:
    if slots is None:
        yield
        return
    if slots.locked():
        observer.waits(f"for one of {tool.options.concurrency} calls of {tool.name}")
    async with slots:
        yield


async def _bounded(request: ToolRequest, transport: ToolTransport, observer: Observer) -> Any:
    """One attempt, within its time."""
    expired = asyncio.timeout(request.timeout)
    try:
        async with expired:
            return await transport.call(request, observer)
    except TimeoutError as error:
        if not expired.expired():
            raise
        name = request.tool.name
        raise InterruptExpiredError(
            f"tool {name} was not over after {request.timeout:g} s", name=name
        ) from error
