"""One LLM call on a runtime, for somebody who is no program: it runs as a program of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agentrt.emitter import RunEmitter
from agentrt.errors import EngineDiedError
from agentrt.executors.base import Chunk
from agentrt.program import Context, Program
from agentrt.request import CallSpec, Reply
from agentrt.run import Run, RunState
from agentrt.runtime import Runtime

PROGRAM_TYPE = "chat"
"""The type of the programs that single calls are."""


async def run_call(runtime: Runtime, spec: CallSpec) -> Reply:
    """Run one call, as a program of its own."""

    async def body(context: Context) -> Reply:
        reply = await _emitter(context).call(spec, ())
        return replace(reply, program_id=context.program_id)

    reply: Reply = await _result(runtime.start(Program(body, PROGRAM_TYPE)))
    return reply


async def run_stream(runtime: Runtime, spec: CallSpec, put: Callable[[Chunk], None]) -> None:
    """Run one call, as a program of its own, telling its chunks as they come."""

    async def body(context: Context) -> None:
        async with aclosing(_emitter(context)._emit_call(spec, (), stream=True)) as pieces:
            async for text, reply in pieces:
                last = None if reply is None else replace(reply, program_id=context.program_id)
                put(Chunk(text, last))

    await _result(runtime.start(Program(body, PROGRAM_TYPE)))


def _emitter(context: Context) -> RunEmitter:
    emitter = context._emitter
    assert isinstance(emitter, RunEmitter)
    return emitter


async def _result(run: Run) -> Any:
    """A run's result; who gives up waiting for it stops it, and waits until it has stopped."""
    assert run.task is not None
    try:
        await asyncio.wait([run.task])
    finally:
        while not run.task.done():
            run.cancel()
            await asyncio.wait([run.task])
    if run.state is RunState.CANCELLED:
        raise EngineDiedError(f"program {run.id} was cancelled: its runtime was closed")
    return await run.wait()
