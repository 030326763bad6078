"""Carries one call of a tool through: checks it, waits for its turn, tries it, tries it again."""

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

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 20.0
_AFTER_DEATHS = 2
"""Attempts that an idempotent tool gets beyond its retries when who ran it died."""
_LEAST_S = 0.001
"""What an attempt gets at least where finding its tool took all of the time."""
_NEVER_AGAIN = (ToolArgumentsError, UnknownToolError, ToolResultError)
_MAY_HAVE_RUN = (ToolLostError, InterruptExpiredError)

Sleep = Callable[[float], Awaitable[None]]


class Observer(ToolContext, Protocol):
    """What a call reports: it waits, it starts, it is tried again."""

    def waits(self, why: str) -> None:
        """No attempt runs now: it is waiting, and ``why`` goes on from there."""

    def starts(self, attempt: int) -> None:
        """An attempt runs from now on."""


class Slots(asyncio.Semaphore):
    """A limit to what runs at once; ``what`` is waited for at the limit, in words."""

    def __init__(self, most: int, what: str) -> None:
        super().__init__(most)
        self.what = what


@dataclass(frozen=True, slots=True)
class Attempts:
    """How calls are tried. ``sleep`` waits between attempts (seconds)."""

    sleep: Sleep = asyncio.sleep

    async def run(
        self,
        request: ToolRequest,
        transport: ToolTransport,
        observer: Observer,
        slots: Sequence[Slots] = (),
    ) -> Any:
        """The result of the first attempt that succeeds; each needs one of all ``slots``.

        Raises `ToolArgumentsError` before anything is run, `InterruptExpiredError` past the
        tool's time, and otherwise what the last attempt raised.
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
    """Return the pause after an attempt, in seconds: twice the last pause, with jitter.

    Not tenacity, which webhooks and triggers use: every call of a tool would pay for its retry
    state, though nearly all calls succeed at the first attempt.
    """
    pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (attempt - 1))
    return pause + random.uniform(0, _FIRST_PAUSE_S)


def _may_retry(tool: Tool, error: Exception, attempt: int) -> bool:
    """Whether a call is tried again whose attempt failed in this way."""
    if isinstance(error, _NEVER_AGAIN):
        return False
    if isinstance(error, _MAY_HAVE_RUN) and not tool.options.idempotent:
        return False
    more = _AFTER_DEATHS if isinstance(error, ToolLostError) else 0
    return attempt <= tool.options.retries + more


async def _attempt(
    request: ToolRequest,
    transport: ToolTransport,
    observer: Observer,
    slots: Sequence[Slots],
    number: int,
) -> Any:
    if slots:
        async with _held(slots, observer):
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
async def _held(slots: Sequence[Slots], observer: Observer) -> AsyncIterator[None]:
    """One of each, in their order."""
    async with contextlib.AsyncExitStack() as held:
        for one in slots:
            if one.locked():
                observer.waits(f"for {one.what}")
            await held.enter_async_context(one)
        yield


@contextlib.asynccontextmanager
async def in_time(request: ToolRequest) -> AsyncIterator[None]:
    """Bound the body by the attempt's time. Raises `InterruptExpiredError`."""
    bound = asyncio.timeout(request.timeout)
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if not bound.expired():
            raise
        name, whole = request.tool.name, request.tool.options.timeout or request.timeout
        raise InterruptExpiredError(
            f"tool {name} was not over after {whole:g} s", name=name
        ) from error
