"""One LLM call of a client program on a runtime; outside any, it is a program of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk, last_reply
from agentrt.request import CallSpec, Reply
from agentrt.runtime import Runtime
from agentrt.runtime.run import Run, RunState
from agentrt.tracking.scope import Scope

T = TypeVar("T")
PROGRAM_TYPE = "chat"
"""The type of the programs that single calls are."""


async def run_call(runtime: Runtime, spec: CallSpec, scope: Scope | None) -> Reply:
    """Run one call of the code in ``scope``; None is outside any program."""
    async with _chunks(runtime, spec, scope, stream=False) as chunks:
        return await last_reply(chunks)


async def run_stream(
    runtime: Runtime, spec: CallSpec, scope: Scope | None, put: Callable[[Chunk], None]
) -> None:
    """As `run_call`, telling its chunks as they come."""
    async with _chunks(runtime, spec, scope, stream=True) as chunks:
        async for chunk in chunks:
            put(chunk)


async def alone(work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` in a task of its own, which a runtime that closes can cancel."""
    with tracking.outside():
        task = asyncio.create_task(work)
    try:
        return await task
    except asyncio.CancelledError:
        me = asyncio.current_task()
        if me is not None and me.cancelling():
            raise
        raise EngineDiedError("the call was cancelled: its runtime was closed") from None


@asynccontextmanager
async def _chunks(
    runtime: Runtime, spec: CallSpec, scope: Scope | None, *, stream: bool
) -> AsyncIterator[AsyncGenerator[Chunk, None]]:
    with _scope_for(runtime, scope) as inside:
        assert isinstance(inside.owner, Run)
        emitter = runtime.emitter(inside.owner)
        async with aclosing(emitter.chunks(spec, inside, stream=stream)) as chunks:
            yield chunks


@contextmanager
def _scope_for(runtime: Runtime, scope: Scope | None) -> Iterator[Scope]:
    if scope is not None:
        yield scope
        return
    run, state = runtime.registry.open(PROGRAM_TYPE), RunState.CANCELLED
    try:
        yield Scope(run, PROGRAM_TYPE)
        state = RunState.DONE
    except Exception:
        state = RunState.FAILED
        raise
    finally:
        runtime.registry.close(run, state)
