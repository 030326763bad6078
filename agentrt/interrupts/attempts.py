"""Running a call of a tool: checking the arguments, waiting for a slot, and retrying failed
attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrt.errors import (
    InterruptExpiredError,
    ToolArgumentsError,
    ToolLostError,
    ToolResultError,
    UnknownToolError,
    text_of,
)
from agentrt.interrupts.context import ToolContext
from agentrt.interrupts.tool import Tool, ToolRequest, ToolTransport
from agentrt.steady import backoff_s

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 20.0
_AFTER_DEATHS = 2
"""Number of additional attempts of an idempotent tool if the process that ran the tool died."""
_LEAST_S = 0.001
"""Minimum timeout of an attempt, in seconds. This minimum applies if looking up the tool took the
whole timeout.
"""
_NEVER_AGAIN = (ToolArgumentsError, UnknownToolError, ToolResultError)
_MAY_HAVE_RUN = (ToolLostError, InterruptExpiredError)

Sleep = Callable[[float], Awaitable[None]]


class Observer(ToolContext, Protocol):
    """An observer of a tool call. `Attempts` tells the observer when the call waits and when an
    attempt starts.
    """

    def waits(self, why: str) -> None:
        """Note that no attempt runs now, because the call waits.

        ``why`` completes the sentence "the call is waiting …", such as "for a slot".
        """

    def starts(self, attempt: int) -> None:
        """Note that an attempt, counted from 1, starts now."""


class AttemptSlots(asyncio.Semaphore):
    """A limit on the number of attempts that run at the same time.

    ``description`` completes the sentence "the call is waiting for …", such as "one of 4 calls of
    NAME".
    """

    def __init__(self, most: int, description: str) -> None:
        super().__init__(most)
        self.description = description


@dataclass(frozen=True, slots=True)
class Attempts:
    """A runner of tool calls with retries. ``sleep`` is the function that waits for a number of
    seconds between two attempts.
    """

    sleep: Sleep = asyncio.sleep

    async def run(
        self,
        request: ToolRequest,
        transport: ToolTransport,
        observer: Observer,
        slots: Sequence[AttemptSlots] = (),
    ) -> Any:
        """Run a call, and return the result of the first attempt that succeeds.

        An attempt needs a slot of each limit in ``slots``. Raises `ToolArgumentsError` for wrong
        arguments, before the first attempt. If no further attempt is allowed, raises the error of
        the last attempt: `InterruptExpiredError` if it took longer than the tool's timeout.
        """
        tool = request.tool
        if tool.spec is not None:
            request = ToolRequest(tool, tool.checked(request.arguments), *request[2:])
        number = 1
        while True:
            try:
                return await _attempt(request, transport, observer, slots, number)
            except Exception as error:
                if not _may_retry(tool, error, number):
                    raise
                observer.waits(f"after attempt {number} failed: {text_of(error)}")
            await self.sleep(_pause_s(number))
            number += 1


def _pause_s(attempt: int) -> float:
    """Return the pause after an attempt, in seconds. Each pause is twice as long as the pause
    before, up to a limit, with jitter.

    Unlike webhooks and triggers, tools do not use the library tenacity. Its retry state would cost
    time in every call of a tool, but nearly all calls succeed at the first attempt.
    """
    pause_s = backoff_s(_FIRST_PAUSE_S, attempt, _LONGEST_PAUSE_S)
    return pause_s + random.uniform(0, _FIRST_PAUSE_S)


def _may_retry(tool: Tool, error: Exception, attempt: int) -> bool:
    """Return whether a call is tried again after an attempt failed with ``error``."""
    if isinstance(error, _NEVER_AGAIN):
        return False
    if isinstance(error, _MAY_HAVE_RUN) and not tool.options.idempotent:
        return False
    further = _AFTER_DEATHS if isinstance(error, ToolLostError) else 0
    return attempt <= tool.options.retries + further


async def _attempt(
    request: ToolRequest,
    transport: ToolTransport,
    observer: Observer,
    slots: Sequence[AttemptSlots],
    number: int,
) -> Any:
    if slots:
        async with _all_of(slots, observer):
            return await _attempt(request, transport, observer, (), number)
    if request.before is not None:
        await request.before()
    observer.starts(number)
    if number > 1:
        request = request._replace(attempt=number)
    elif request.timeout is not None and request.tool.spent:
        request = request._replace(timeout=max(request.timeout - request.tool.spent, _LEAST_S))
    if request.timeout is None or transport.keeps_time:
        result = await transport.call(request, observer)
    else:
        async with in_time(request):
            result = await transport.call(request, observer)
    request.tool.check_result(result)
    return result


@contextlib.asynccontextmanager
async def _all_of(slots: Sequence[AttemptSlots], observer: Observer) -> AsyncIterator[None]:
    """Hold a slot of each limit during the ``with`` block. The slots are acquired in the order of
    the limits.
    """
    async with contextlib.AsyncExitStack() as stack:
        for limit in slots:
            if limit.locked():
                observer.waits(f"for {limit.description}")
            await stack.enter_async_context(limit)
        yield


@contextlib.asynccontextmanager
async def in_time(request: ToolRequest) -> AsyncIterator[None]:
    """Limit the ``with`` block to the attempt's timeout. Raises `InterruptExpiredError` if the
    block takes longer.
    """
    bound = asyncio.timeout(request.timeout)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        name, whole = request.tool.name, request.tool.options.timeout or request.timeout
        raise InterruptExpiredError(
            f"tool {name} did not finish within {whole:g} s", name=name
        ) from error
