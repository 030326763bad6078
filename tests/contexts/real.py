"""Contexts on the session's real engine: programs there, and what the engine has computed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentrt import Context, Runtime, SchedulerConfig, program
from agentrt.engines import VLLMEngine
from tests.graph.integrity import check_integrity

T = TypeVar("T")


def engine_of(runtime: Runtime) -> VLLMEngine:
    """The real engine."""
    assert isinstance(runtime.executor, VLLMEngine)
    return runtime.executor


async def run(runtime: Runtime, body: Callable[[Context], Awaitable[T]]) -> T:
    """What a program returns that does what ``body`` says. Its DAG is sound and over."""

    @program
    async def uses_contexts(ctx: Context) -> T:
        return await body(ctx)

    run = runtime.start(uses_contexts)
    result: T = await run.wait()
    check_integrity(run.dag)
    assert not [node for node in run.dag.nodes() if not node.state.ended]
    return result


async def fresh(runtime: Runtime, policy: str = "fcfs", **settings: Any) -> None:
    """The engine has computed nothing, and ranks by ``policy``."""
    engine = engine_of(runtime)
    await engine.configure(SchedulerConfig(policy=policy, **settings))
    await engine.forget_prefixes()


async def computed(runtime: Runtime) -> int:
    """Tokens that the engine has computed since its start."""
    return int((await engine_of(runtime).snapshot())["computed_tokens"])
