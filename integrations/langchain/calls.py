"""One chat request of a client program on a runtime; outside any, it is a program of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

from agentrt import tracking
from agentrt.errors import EngineDiedError
from agentrt.executors.frontend import Answer, Request
from agentrt.request import Reply
from agentrt.runtime import Runtime
from agentrt.runtime.emitter import RunCaller, RunEmitter
from agentrt.runtime.run import Run, RunState
from agentrt.tracking.scope import Scope

T = TypeVar("T")
PROGRAM_TYPE = "chat"
"""The type of the programs that single calls are."""
ACCOUNT = "agentrt"
"""The field of an answer, or of a stream's last chunk, that says whose call it was and its cost."""


async def run_call(runtime: Runtime, request: Request, scope: Scope | None) -> Answer:
    """Answer a request of the code in ``scope``; None is outside any program."""
    with _caller(runtime, scope) as (emitter, who):
        answer = await emitter.chat(request, who)
        return {**answer, ACCOUNT: _account(who.replies)}


async def run_stream(
    runtime: Runtime, request: Request, scope: Scope | None, put: Callable[[Answer], None]
) -> None:
    """As `run_call`, telling the answer's chunks as they come; the last has no choices."""
    with _caller(runtime, scope) as (emitter, who):
        async with aclosing(emitter.chat_stream(request, who)) as pieces:
            async for piece in pieces:
                put(piece)
        put({"choices": [], ACCOUNT: _account(who.replies)})


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


def _account(replies: list[Reply]) -> dict[str, Any]:
    """Of several choices, which are calls beside each other, that of the last to end."""
    if not replies:
        return {}
    last = replies[-1]
    return {
        "program_id": last.program_id,
        "node": last.node,
        "service_s": last.report.service_s,
        "waiting_s": last.report.waiting_s,
        "preemptions": last.report.preemptions,
    }


@contextmanager
def _caller(runtime: Runtime, scope: Scope | None) -> Iterator[tuple[RunEmitter, RunCaller]]:
    with _scope_for(runtime, scope) as inside:
        assert isinstance(inside.owner, Run)
        emitter = runtime.emitter(inside.owner)
        yield emitter, emitter.caller(inside)


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
