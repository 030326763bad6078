"""The Ray actor with an embedded engine on a node of the cluster. It sends outputs in batches."""

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
from agentrt.executors.weights import Weights
from agentrt.request import Call, CallReport
from agentrt.request.weights import PauseMode
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric


_OF_THE_PROMPT = ("prompt", "prompt_token_ids")
"""The fields of vLLM's ``RequestOutput`` with the prompt, which are equal in all pieces."""


def without_copies(call: Call) -> Call:
    """Return a call without its prompt's token ids if `CallSpec.rendered` has them, too."""
    if call.spec.rendered is None or call.spec.sampling is not None:
        return call
    return replace(call, spec=replace(call.spec, prompt_token_ids=None))


def without_prompt(chunk: Chunk) -> Chunk:
    """Return a piece of output without the prompt, for a reader that has the prompt from the first
    piece.
    """
    return _with(chunk, dict.fromkeys(_OF_THE_PROMPT))


class PromptRestorer:
    """Adds the prompt to the later pieces of a call's output. Only the first piece is sent with the
    prompt.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] | None = None

    def restored(self, chunk: Chunk) -> Chunk:
        """Return the piece as the engine created it."""
        if self._kept is None:
            self._kept = {name: getattr(chunk.output, name, None) for name in _OF_THE_PROMPT}
            return chunk
        return _with(chunk, self._kept)


def _with(chunk: Chunk, values: dict[str, Any]) -> Chunk:
    if not hasattr(chunk.output, "prompt_token_ids"):
        return chunk  # not from a vLLM engine
    output = copy.copy(chunk.output)
    for name, value in values.items():
        setattr(output, name, value)
    return replace(chunk, output=output)


Output = tuple[str, "Chunk | AgentrtError | KVEventBatch | None"]
"""A call's id, and a piece of its output, its error, or None for its end.

Events of the engine's prefix cache have `KV_EVENTS` instead of a call's id.
"""

PROGRESS = ""
"""The value that messages about the progress of the engine's start have instead of a call's id."""


class EngineActor:
    """An engine in an async actor of Ray.

    `collect` returns the outputs of all calls since its last answer. While one answer is sent, the
    outputs for the next answer are gathered. So there is at most one round trip for each step of
    the engine, whatever the number of calls.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._engine = VLLMEngine(options)
        self._calls: dict[str, asyncio.Task[AgentrtError | None]] = {}
        self._outputs: list[Output] = []
        self._news = asyncio.Event()

    async def start(self) -> tuple[ExecutorInfo, list[int]]:
        """Start the engine, and return its info and the ids of its processes."""
        await self._engine.start(lambda message: self._put(PROGRESS, Chunk(message)))
        self._engine.on_kv_events(lambda note: self._put(KV_EVENTS, note))
        return self._engine.info, self._engine.pids()

    async def begin(self, call: Call, stream: bool) -> None:
        """Start a call, whose output `collect` returns."""
        task = self._calls[call.call_id] = asyncio.create_task(self._run(call, stream))
        # A callback, because a task that is cancelled before it starts runs none of its code.
        task.add_done_callback(functools.partial(self._ended, call.call_id))

    async def _run(self, call: Call, stream: bool) -> AgentrtError | None:
        """Run a call, and return its error, or None if it succeeded."""
        try:
            first = True
            async with contextlib.aclosing(self._engine.generate(call, stream=stream)) as chunks:
                async for chunk in chunks:
                    self._put(call.call_id, chunk if first else without_prompt(chunk))
                    first = False
        except Exception as error:
            if isinstance(error, AgentrtError):
                # A copy without the cause, which may not be picklable. Copying fails for an error
                # whose constructor takes other arguments; such an error becomes an `EngineError`.
                with contextlib.suppress(Exception):
                    return type(error)(*error.args)
            return EngineError(f"call {call.call_id}: {type(error).__name__}: {error}")
        return None

    def _ended(self, call_id: str, task: asyncio.Task[AgentrtError | None]) -> None:
        del self._calls[call_id]
        self._put(call_id, None if task.cancelled() else task.result())

    def _put(self, call_id: str, output: Chunk | AgentrtError | KVEventBatch | None) -> None:
        self._outputs.append((call_id, output))
        self._news.set()

    async def collect(self) -> list[Output]:
        """Wait until there are outputs, and return all outputs since the last call of this
        method.
        """
        await self._news.wait()
        self._news.clear()
        outputs, self._outputs = self._outputs, []
        return outputs

    async def stop(self, call_id: str) -> None:
        """Abort a call if it is still running."""
        task = self._calls.get(call_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def aborted(self, call_id: str) -> CallReport:
        """Abort a call, and return its report."""
        await self.stop(call_id)
        return await self._engine.aborted(call_id)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Forget a program."""
        await self._engine.end_program(program_id, totals)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        """Replace the statistics that the engine has learned of programs."""
        return await self._engine.know(learned)

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        """Return the engine's setups for front ends."""
        return await self._engine.front_setups()

    async def add_adapter(self, model: str, adapter: Any) -> None:
        """Load a LoRA adapter."""
        await self._engine.add_adapter(model, adapter)

    async def pause_generation(self, mode: PauseMode) -> None:
        """Pause generation."""
        await self._engine.pause_generation(mode)

    async def resume_generation(self) -> None:
        """Resume generation."""
        await self._engine.resume_generation()

    async def check_weights(self, folder: str) -> str:
        """Check a checkpoint on the engine's node, and return the fingerprint of its files."""
        return await self._engine.check_weights(folder)

    async def load_weights(self, weights: Weights, clear_cache: bool) -> None:
        """Load other weights."""
        await self._engine.load_weights(weights, clear_cache=clear_cache)

    async def cached_blocks(self) -> tuple[KVEventBatch, int, tuple[str, int]] | None:
        """Return the blocks in the prefix cache, the number of tokens of a block, and
        `VLLMEngine.hashing`.

        Return None if the engine makes no KV events.
        """
        cached = await self._engine.cached_blocks()
        return None if cached is None else (*cached, self._engine.hashing)

    async def notify(self, notes: list[Notification]) -> None:
        """Pass notifications of what programs do to the engine."""
        for note in notes:
            self._engine.notify(note)

    async def snapshot(self) -> Mapping[str, Any]:
        """Return the engine's snapshot. Raises `EngineError` if the engine is dead."""
        if not self._engine.alive():
            raise EngineError("the engine core is dead")
        return await self._engine.snapshot()

    async def metrics(self) -> Sequence[Metric]:
        """Return the engine's own metrics."""
        return await self._engine.metrics()

    async def cpu_seconds(self) -> float:
        """Return the CPU seconds that the engine core has used."""
        return await self._engine.cpu_seconds()

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.close()
