"""What runs on a node of the cluster: one embedded engine, whose outputs leave in batches."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrt.errors import AgentrtError, EngineError
from agentrt.executors.base import Chunk, FrontSetup, Notification
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions
from agentrt.request import Call, CallReport
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric


_OF_THE_PROMPT = ("prompt", "prompt_token_ids")
"""What vLLM's ``RequestOutput`` has of a prompt, the same in each piece."""


def without_copies(call: Call) -> Call:
    """The call with its prompt in one place: what was rendered has its token ids, too."""
    if call.spec.rendered is None or call.spec.sampling is not None:
        return call
    return replace(call, spec=replace(call.spec, prompt_token_ids=None))


def without_prompt(chunk: Chunk) -> Chunk:
    """A piece without the prompt, for who has had it with the first."""
    return _with(chunk, dict.fromkeys(_OF_THE_PROMPT))


class PromptRestorer:
    """Puts the prompt of a call's first piece back into those after it."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] | None = None

    def restored(self, chunk: Chunk) -> Chunk:
        """The piece as the engine made it."""
        if self._kept is None:
            self._kept = {name: getattr(chunk.output, name, None) for name in _OF_THE_PROMPT}
            return chunk
        return _with(chunk, self._kept)


def _with(chunk: Chunk, values: dict[str, Any]) -> Chunk:
    if not hasattr(chunk.output, "prompt_token_ids"):
        return chunk  # of an engine that is not vLLM's
    output = copy.copy(chunk.output)
    for name, value in values.items():
        setattr(output, name, value)
    return replace(chunk, output=output)


Output = tuple[str, "Chunk | AgentrtError | KVEventBatch | None"]
"""Whose output it is (a call's id), and what: a piece, the call's error, or its end.

A note of what the engine holds comes between them, for `KV_EVENTS` in place of a call.
"""

PROGRESS = ""
"""In place of a call's id: what comes with it is the engine's progress while it starts."""


class EngineActor:
    """An engine in an async actor of Ray.

    All outputs of all calls leave through `collect`, which gives what there is: while one
    answer travels, the next gathers, so that a hop costs a round trip for each step of the
    engine at most, whatever the number of calls.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._engine = VLLMEngine(options)
        self._calls: dict[str, asyncio.Task[AgentrtError | None]] = {}
        self._outputs: list[Output] = []
        self._news = asyncio.Event()

    async def start(self) -> tuple[ExecutorInfo, list[int]]:
        """Start the engine, and say what it runs with, and its processes."""
        await self._engine.start(lambda message: self._put(PROGRESS, Chunk(message)))
        self._engine.on_kv_events(lambda note: self._put(KV_EVENTS, note))
        return self._engine.info, self._engine.pids()

    async def begin(self, call: Call, stream: bool) -> None:
        """Run the call; what it puts out is for `collect`."""
        task = self._calls[call.call_id] = asyncio.create_task(self._run(call, stream))
        # Not in the task: one that is stopped before its first step runs none of its code.
        task.add_done_callback(functools.partial(self._ended, call.call_id))

    async def _run(self, call: Call, stream: bool) -> AgentrtError | None:
        """Put out the call's chunks, and return the error that it ended with."""
        try:
            first = True
            async with contextlib.aclosing(self._engine.generate(call, stream=stream)) as chunks:
                async for chunk in chunks:
                    self._put(call.call_id, chunk if first else without_prompt(chunk))
                    first = False
        except Exception as error:
            if isinstance(error, AgentrtError):
                with contextlib.suppress(Exception):  # unless it takes more than its `args`
                    return type(error)(*error.args)  # without its cause, which may not travel
            return EngineError(f"call {call.call_id}: {type(error).__name__}: {error}")
        return None

    def _ended(self, call_id: str, task: asyncio.Task[AgentrtError | None]) -> None:
        del self._calls[call_id]
        self._put(call_id, None if task.cancelled() else task.result())

    def _put(self, call_id: str, output: Chunk | AgentrtError | KVEventBatch | None) -> None:
        self._outputs.append((call_id, output))
        self._news.set()

    async def collect(self) -> list[Output]:
        """All outputs since the last time; waits until there is one."""
        await self._news.wait()
        self._news.clear()
        outputs, self._outputs = self._outputs, []
        return outputs

    async def stop(self, call_id: str) -> None:
        """Abort the call, if it still runs."""
        task = self._calls.get(call_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def aborted(self, call_id: str) -> CallReport:
        """What a call had used when it was aborted."""
        await self.stop(call_id)
        return await self._engine.aborted(call_id)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Forget a program."""
        await self._engine.end_program(program_id, totals)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        """Replace what the engine has learned of programs."""
        return await self._engine.know(learned)

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        """What a front end elsewhere is made from."""
        return await self._engine.front_setups()

    async def add_adapter(self, model: str, adapter: Any) -> None:
        """Load a LoRA adapter."""
        await self._engine.add_adapter(model, adapter)

    async def cached_blocks(self) -> tuple[KVEventBatch, int, tuple[str, int]] | None:
        """What the engine holds, its tokens per block, and how it hashes them."""
        found = await self._engine.cached_blocks()
        return None if found is None else (*found, self._engine.hashing)

    async def notify(self, notes: list[Notification]) -> None:
        """Programs went to tools or humans, or came back."""
        for note in notes:
            self._engine.notify(note)

    async def snapshot(self) -> Mapping[str, Any]:
        """What runs and what waits; raises `EngineError` if the engine is dead."""
        if not self._engine.alive():
            raise EngineError("the engine core is dead")
        return await self._engine.snapshot()

    async def metrics(self) -> Sequence[Metric]:
        """What the engine counts itself."""
        return await self._engine.metrics()

    async def cpu_seconds(self) -> float:
        """Processor time that the engine core has used (seconds)."""
        return await self._engine.cpu_seconds()

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()
