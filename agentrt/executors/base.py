"""The interface between the runtime and the executors that run its LLM calls.

A new kind of engine subclasses `Executor`. An executor that wraps another one, to count, order or
change its calls, subclasses `ForwardingExecutor` and overrides the methods that it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, cast

from agentrt.errors import ConfigError
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.weights import Weights, update_engines
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.request.weights import PauseMode
from agentrt.router.kv_events import KVEventBatch
from agentrt.scheduler.table import ProgramTotals
from agentrt.tracking import task_on

if TYPE_CHECKING:
    from prometheus_client import Metric
    from vllm.config import VllmConfig

T = TypeVar("T")
Progress = Callable[[str], None]
"""A function that gets short texts about the progress of a slow start."""
KVEventListener = Callable[[KVEventBatch], None]
"""A function that gets the blocks that an engine's prefix cache has stored and removed."""


@dataclass(slots=True)
class Chunk:
    """A piece of a call's output. Only the last piece also has the whole ``reply``.

    Where a front end formats the answer, as with vLLM, the ``reply`` is not the reply that the
    program gets: it only carries the call's report to the runtime. The front end reads ``output``,
    and finds reasoning and tool calls in it. The program's reply is made of the front end's answer
    (`agentrt.executors.replies.reply_of`) and of that report.

    ``output`` is the piece in the form that the front end reads: a ``chat.completion`` or a
    ``chat.completion.chunk`` in OpenAI's form, or vLLM's ``RequestOutput`` or
    ``PoolingRequestOutput``. It is None if the front end reads only ``text`` and ``reply``.
    ``token_ids`` are the tokens of the piece, if the executor reports them, and ``logprobs`` their
    log probabilities, if the call was made ``with_logprobs``. The last piece may have no
    ``logprobs``, because its ``reply`` has the log probabilities of all tokens.
    """

    text: str
    reply: Reply | None = None
    output: Any = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


async def last_reply(chunks: AsyncGenerator[Chunk, None]) -> Reply:
    """Read a call's output to its end and return its reply."""
    reply: Reply | None = None
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            reply = chunk.reply
    assert reply is not None
    return reply


class StreamReading(Generic[T]):
    """An iterator over a stream; `fail` can interrupt a task that waits for the next item.

    Each call of ``following`` returns the next item. ``task`` is the task that waits for an item;
    the reader must set it to None when it has received the item. This is a class, not an async
    generator, because a further generator would cost time for each token.

    Read the stream in a ``with`` block of this object. At the end of the block, the cancellation by
    which `fail` wakes the task becomes the error with which `fail` was called.
    """

    __slots__ = ("_before", "_error", "_loop", "_next", "_open", "task")

    def __init__(
        self, following: Callable[[], Awaitable[T]], open_readings: set[StreamReading[Any]]
    ) -> None:
        self._next = following
        self._open = open_readings
        self._loop = asyncio.get_running_loop()
        self._error: Exception | None = None
        self._before = 0
        self.task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        task = task_on(self._loop)
        self._before = 0 if task is None else task.cancelling()
        self._open.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._open.discard(self)
        if kind is None or self._error is None or not issubclass(kind, asyncio.CancelledError):
            return
        if self.task is not None and self.task.uncancel() <= self._before:
            raise self._error from cast(BaseException, error)

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        self.task = task_on(self._loop)
        return self._next()

    def fail(self, error: Exception) -> None:
        """Make all further reads raise ``error``, and cancel the task that waits for an item."""

        async def failed() -> T:
            raise error

        self._next, self._error = failed, error
        if self.task is not None:
            self.task.cancel()


class Notification(NamedTuple):
    """A notification of what a program does outside the engine.

    With ``kind`` ``tool`` or ``human``, the program begins to wait for the tool or event called
    ``name``, or for a human; with ``returned`` or ``answered``, this wait has ended. An engine can
    use these notifications to keep the program's context in its cache for the next call. With
    ``dropped``, the program will not use again what its call with the id ``name`` has computed,
    except the first ``tokens`` tokens of the call.
    """

    program_id: str
    kind: str
    name: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """The data from which vLLM's front end for a model is created.

    ``model`` is the model's path or name, by which calls are sent to its engines. ``vllm_config``
    is the configuration of these engines, and ``tasks`` are the tasks that they support. ``flags``
    are the user's flags of `vllm serve`.
    """

    model: str
    vllm_config: VllmConfig
    tasks: tuple[Any, ...]
    flags: tuple[str, ...] = ()


class Executor(ABC):
    """The interface of executors, which run LLM calls. All methods must be called from the same
    event loop.
    """

    @property
    def info(self) -> ExecutorInfo:
        """The executor's models and abilities, as far as they are known now."""
        return ExecutorInfo()

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        """Start the executor. Raises `ModelLoadError`, `ConfigError` or `EngineStartError`, and
        `EngineDiedError` if the engine or its node is lost meanwhile.

        ``progress`` is called with texts about the progress.
        """

    async def close(self) -> None:
        """Stop the executor within seconds, and leave no process behind. Idempotent."""

    def alive(self) -> bool:
        """Return False when the engine is known to be dead. Returns immediately."""
        return True

    def waits_for(self) -> Sequence[str]:
        """Return what engines wait for before they can start, such as a free cluster node.

        The result has a line of text for each engine that waits. Returns immediately.
        """
        return ()

    async def given_up(self) -> str:
        """Wait until the engine is dead and will not be replaced, and return the reason. Executors
        that do not replace their engine wait forever.
        """
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def cpu_seconds(self) -> float | None:
        """Return the CPU seconds that the engine has used so far; None if not known."""
        return None

    def pids(self) -> list[int]:
        """Return the ids of the engine's own processes on its machine."""
        return []

    # -- calls -------------------------------------------------------------------------

    @abstractmethod
    def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        """Run a call and yield its output in pieces, or without ``stream`` in a single piece.

        Closing the iterator, or cancelling the task that reads it, aborts the call and frees its KV
        cache. Raises `CallRejectedError` if the engine refuses the call, `EngineDiedError` if the
        engine dies, and `EngineError` if the call fails in another way.
        """

    async def aborted(self, call_id: str) -> CallReport:
        """Return the report of a call whose output was not read to its end, and forget it. The call
        may have been aborted, or may have ended in the engine before its last output was read.

        Return an empty report, with 0 ``prompt_tokens``, if nothing is known of the call.
        """
        return CallReport()

    # -- programs ----------------------------------------------------------------------

    def notify(self, note: Notification) -> None:
        """Note what a program does now. This must be fast, and must not raise."""

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        """Forget a program that has ended, has failed or was cancelled. Idempotent.

        ``totals`` are the program's totals over all engines, from which the scheduler learns. The
        totals of a program are passed at most once.
        """

    async def know(self, learned: Mapping[str, Any]) -> bool:
        """Replace the statistics that the engine has learned by the content of a history file.

        Returns False if the executor does not support this.
        """
        return False

    async def snapshot(self) -> Mapping[str, Any]:
        """Return the running and waiting calls and the scheduler's state, as JSON values."""
        return {}

    async def metrics(self) -> Sequence[Metric]:
        """Return the engines' Prometheus metrics; the label ``engine`` is the engine's number."""
        return ()

    # -- front ends --------------------------------------------------------------------

    async def front_setups(self) -> Sequence[FrontSetup]:
        """Return the setup of vLLM's front end for each served model.

        The result is empty for executors that accept chat requests as they are, for executors with
        their own front end (`own_frontend`), and for a vLLM engine without a tokenizer.
        """
        return ()

    def own_frontend(self, names: Sequence[str]) -> Any:
        """Return the executor's own `Frontend`. Most executors have none and return None.

        ``names`` are further names under which clients may request the executor's model.
        """
        return None

    async def add_adapter(self, model: str, adapter: Any) -> None:
        """Load a LoRA adapter (vLLM's ``LoRARequest``) of ``model``.

        Raises `CallRejectedError` if it cannot be loaded, and `EngineDiedError` if the engine dies.
        """

    # -- weights -----------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        """The weights that write the tokens of new calls."""
        return Weights()

    @property
    def paused(self) -> bool:
        """Whether generation is paused."""
        return False

    async def pause_generation(self, mode: PauseMode) -> None:
        """Pause generation, and return when no call runs. New calls wait until `resume_generation`.

        ``mode`` says what happens to calls in the engine. Raises `ConfigError` for an unknown mode,
        and if the executor cannot pause.
        """
        raise ConfigError(f"{type(self).__name__} cannot pause generation; {_USE_VLLM}")

    async def resume_generation(self) -> None:
        """Resume generation. Idempotent."""

    async def check_weights(self, folder: str) -> str:
        """Check that the engine can load a checkpoint, and return the fingerprint of its files.
        Nothing is changed.

        Raises `WeightsError` for a checkpoint that cannot be used, and `ConfigError` if the
        executor cannot load weights.
        """
        raise ConfigError(f"{type(self).__name__} cannot update its weights; {_USE_VLLM}")

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        """Load other weights while generation is paused.

        With ``clear_cache``, the prefix cache is emptied, and calls that were stopped compute their
        tokens again under the new weights. Raises `EngineError` if the weights cannot be loaded,
        and `WeightsError` if their files are gone; the engine then has its old weights. Raises
        `EngineDiedError` if the engine dies or can load neither the new nor its old weights, and
        `ConfigError` if the executor cannot load weights.
        """
        raise ConfigError(f"{type(self).__name__} cannot update its weights; {_USE_VLLM}")

    async def update_weights(
        self, folder: str, version: int, mode: PauseMode = "keep", *, clear_cache: bool = False
    ) -> None:
        """Replace the weights of all engines of the executor, or of none; see `update_engines`."""
        await update_engines([self], folder, version, mode, clear_cache=clear_cache)

    # -- the prefix cache, if `ExecutorInfo.cached_blocks` is true -------------------------

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        """Return 64 bits of the hash of each full block of a call's prompt.

        The call must have ``prompt_token_ids``. A hash also covers the images, the adapter and the
        cache salt. The result is empty before `cached_blocks` was called.
        """
        return ()

    def on_kv_events(self, listener: KVEventListener) -> None:
        """Call ``listener`` from now on with the blocks that the prefix cache stores and
        removes.
        """

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        """Return all blocks in the prefix cache, and the number of tokens of a block.

        The result is None if the engine does not report its blocks. If the engine is dead, the
        result is None, or `EngineDiedError` is raised.
        """
        return None


_USE_VLLM = "use the embedded engine (--engine vllm)"
NO_ROOM_YET = "waiting for a node with room"
"""The beginning of the progress text of an engine that waits for a node of a cluster."""


class ForwardingExecutor(Executor):
    """An executor that forwards all calls of its methods to ``inner``. Subclasses override some of
    the methods.
    """

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

    @property
    def weights(self) -> Weights:
        return self.inner.weights

    @property
    def paused(self) -> bool:
        return self.inner.paused

    async def pause_generation(self, mode: PauseMode) -> None:
        await self.inner.pause_generation(mode)

    async def resume_generation(self) -> None:
        await self.inner.resume_generation()

    async def check_weights(self, folder: str) -> str:
        return await self.inner.check_weights(folder)

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        await self.inner.load_weights(weights, clear_cache=clear_cache)

    async def update_weights(
        self, folder: str, version: int, mode: PauseMode = "keep", *, clear_cache: bool = False
    ) -> None:
        await self.inner.update_weights(folder, version, mode, clear_cache=clear_cache)

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        return self.inner.block_hashes(spec)

    def on_kv_events(self, listener: KVEventListener) -> None:
        self.inner.on_kv_events(listener)

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        return await self.inner.cached_blocks()
