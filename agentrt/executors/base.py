"""The seam between the runtime and whatever runs its LLM calls.

An engine of a new kind subclasses `Executor`; what stands before another one, to count, order or
change its calls, subclasses `ForwardingExecutor` and overrides what it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.router.kv_events import KVEventBatch
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric
    from vllm.config import VllmConfig

T = TypeVar("T")
Progress = Callable[[str], None]
"""Called with a few words on what a slow start is doing now."""
KVEventListener = Callable[[KVEventBatch], None]
"""Called with what an engine's prefix cache stored and removed."""


@dataclass(slots=True)
class Chunk:
    """A piece of a call's output. The last chunk, and only it, carries the whole ``reply``.

    ``output`` is the piece as its front end reads it: a ``chat.completion`` or one of its chunks
    in OpenAI's form, or vLLM's ``RequestOutput``. ``token_ids`` are the piece's, where the
    executor tells them.
    """

    text: str
    reply: Reply | None = None
    output: Any = None
    token_ids: tuple[int, ...] = ()


async def last_reply(chunks: AsyncGenerator[Chunk, None]) -> Reply:
    """Read a call's output to its end and return its reply."""
    reply: Reply | None = None
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            reply = chunk.reply
    assert reply is not None
    return reply


class Reading(Generic[T]):
    """Reads what ``following`` gives, item by item. ``task`` waits for the next: whoever gets it
    sets that to None. It is no generator, since one more of them costs something for each token.
    """

    __slots__ = ("_loop", "_next", "task")

    def __init__(self, following: Callable[[], Awaitable[T]]) -> None:
        self._next = following
        self._loop = asyncio.get_running_loop()
        self.task: asyncio.Task[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        self.task = asyncio.current_task(self._loop)
        return self._next()

    def fail(self, error: Exception) -> None:
        """The next item will not come. The task that waits for it is cancelled."""

        async def failed() -> T:
            raise error

        self._next = failed
        if self.task is not None:
            self.task.cancel()


class Notification(NamedTuple):
    """Where a program is while it has no call in the engine: ``what`` happened.

    It went to a ``tool`` (by ``name``) or a ``human``, or is ``returned`` or ``answered``. An
    engine that knows can keep what the program will need when it comes back. Or it has
    ``dropped`` what its call ``name`` had computed, after the first ``tokens`` of it.
    """

    program_id: str
    what: str
    name: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """What vLLM's front end for one model is made from: its engines' ``vllm_config``, and the
    ``tasks`` that they support.

    ``model`` is the model's path or name, by which calls find their engines. ``flags`` are those
    of `vllm serve` that the user gave.
    """

    model: str
    vllm_config: VllmConfig
    tasks: tuple[Any, ...]
    flags: tuple[str, ...] = ()


class Executor(ABC):
    """Runs LLM calls. One per replica; all methods belong to one event loop."""

    @property
    def info(self) -> ExecutorInfo:
        """What it serves and can do, as far as it is known now."""
        return ExecutorInfo()

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        """Come up, or raise `ModelLoadError`, `ConfigError` or `EngineStartError`."""

    async def close(self) -> None:
        """Stop within seconds, leaving no process behind. Idempotent."""

    def alive(self) -> bool:
        """False once the engine is known to be gone. Costs nothing."""
        return True

    def waits_for(self) -> Sequence[str]:
        """What engines that are not there yet wait for, such as a node with room: a line each.
        Costs nothing.
        """
        return ()

    async def given_up(self) -> str:
        """Wait until the engine is gone, and none will take its place; return why."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def cpu_seconds(self) -> float | None:
        """Processor time that the engine has used so far; None where it is not known."""
        return None

    def pids(self) -> list[int]:
        """The engine's processes on its machine, where it has some of its own."""
        return []

    # -- calls -------------------------------------------------------------------------

    @abstractmethod
    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Run one call, yielding its text as it grows, or with ``stream`` off all at once.

        Closing the iterator, or cancelling the task that reads it, aborts the call and
        frees its KV cache. Raises `CallRejectedError` or `EngineDiedError`.
        """

    async def aborted(self, call_id: str) -> CallReport:
        """What a call that was aborted had used; an empty report where nothing is known."""
        return CallReport()

    # -- programs ----------------------------------------------------------------------

    def notify(self, note: Notification) -> None:
        """Take note of what a program does now. It must be quick, and does not raise."""

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Forget a program: it ended, failed or was cancelled. Idempotent.

        ``totals`` are what it came to over all engines, to learn from; they are given once, where
        they are known.
        """

    async def know(self, learned: Mapping[str, Any]) -> bool:
        """Replace what the engine has learned of programs by a history file's content.

        Return whether it has: an executor without a scheduler that learns takes nothing.
        """
        return False

    async def snapshot(self) -> Mapping[str, Any]:
        """What runs and what waits, and behind what: JSON-able, for people and tests."""
        return {}

    async def metrics(self) -> Sequence[Metric]:
        """What the engines count themselves, for Prometheus; each has its number as ``engine``."""
        return ()

    # -- what a front end needs --------------------------------------------------------

    async def front_setups(self) -> Sequence[FrontSetup]:
        """What vLLM's front end is made from, one for each model that is served.

        None for executors that take requests as they are.
        """
        return ()

    def own_frontend(self, names: Sequence[str]) -> Any:
        """A `Frontend` that the executor brings itself, of a model that is called ``names``, too;
        None for most.
        """
        return None

    async def add_adapter(self, model: str, adapter: Any) -> None:
        """Load a LoRA adapter (vLLM's ``LoRARequest``) of ``model``.

        Raises `CallRejectedError` for one that does not load.
        """

    # -- the prefix cache, where `ExecutorInfo.cached_blocks` ------------------------------

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        """64 bits of the hash of each full block of a call's prompt, which is in token ids.

        What else tells blocks apart is in them: images, the adapter, the cache salt.
        """
        return ()

    def on_kv_events(self, listener: KVEventListener) -> None:
        """Tell ``listener`` what the prefix cache stores and removes, from now on."""

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        """All that the prefix cache holds, and its tokens per block.

        None where the engine does not tell, or is gone.
        """
        return None


NO_ROOM_YET = "waiting for a node with room"
"""With these words begins the progress of an engine that is to be placed on a cluster."""


class ForwardingExecutor(Executor):
    """An executor that hands everything on to ``inner``: for what changes a part of it."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner

    @property
    def info(self) -> ExecutorInfo:
        return self.inner.info

    async def start(self, progress: Progress) -> None:
        await self.inner.start(progress)

    async def close(self) -> None:
        await self.inner.close()

    def alive(self) -> bool:
        return self.inner.alive()

    def waits_for(self) -> Sequence[str]:
        return self.inner.waits_for()

    async def given_up(self) -> str:
        return await self.inner.given_up()

    async def cpu_seconds(self) -> float | None:
        return await self.inner.cpu_seconds()

    def pids(self) -> list[int]:
        return self.inner.pids()

    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        return self.inner.generate(call, stream=stream)

    async def aborted(self, call_id: str) -> CallReport:
        return await self.inner.aborted(call_id)

    def notify(self, note: Notification) -> None:
        self.inner.notify(note)

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        await self.inner.end_program(program_id, totals)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        return await self.inner.know(learned)

    async def snapshot(self) -> Mapping[str, Any]:
        return await self.inner.snapshot()

    async def metrics(self) -> Sequence[Metric]:
        return await self.inner.metrics()

    async def front_setups(self) -> Sequence[FrontSetup]:
        return await self.inner.front_setups()

    def own_frontend(self, names: Sequence[str]) -> Any:
        return self.inner.own_frontend(names)

    async def add_adapter(self, model: str, adapter: Any) -> None:
        await self.inner.add_adapter(model, adapter)

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        return self.inner.block_hashes(spec)

    def on_kv_events(self, listener: KVEventListener) -> None:
        self.inner.on_kv_events(listener)

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        return await self.inner.cached_blocks()
