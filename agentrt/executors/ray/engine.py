"""An `Executor` whose engine runs on a node of a Ray cluster.

`RayEngine` is the executor. It calls the methods of an `EngineActor`, which runs in a process on
the node and has the embedded engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrt import tracking
from agentrt.errors import (
    AgentrtError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    NoRoomError,
)
from agentrt.executors.base import (
    NO_ROOM_YET,
    Chunk,
    Executor,
    FrontSetup,
    KVEventListener,
    Notification,
    Progress,
)
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.outbox import Outbox
from agentrt.executors.ray.cluster import Cluster
from agentrt.executors.vllm.calls import BlockHasher
from agentrt.executors.vllm.engine import VLLMEngine
from agentrt.executors.vllm.options import EngineOptions, reports_logprobs
from agentrt.executors.vllm.processes import in_new_thread
from agentrt.executors.weights import Weights
from agentrt.request import Call, CallReport, CallSpec
from agentrt.request.weights import PauseMode
from agentrt.router.kv_events import KV_EVENTS, KVEventBatch
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from prometheus_client import Metric
    from ray import ObjectRef
    from ray.actor import ActorHandle

_PLACE_S = 180.0
"""Seconds to wait for a node with enough free resources, and for the actor's process there."""
_POLL_S = 1.0
"""Seconds between two questions whether a node has taken the actor."""
_REGISTER_S = 60.0
"""Seconds in which Ray expects a new process on a node to report. Ray then starts another one."""
_CLOSE_S = 3.0
"""Seconds for an engine to stop by itself before its actor is killed."""

_OF_THE_PROMPT = ("prompt", "prompt_token_ids")
"""The fields of vLLM's ``RequestOutput`` with the prompt, which are equal in all pieces."""

Output = tuple[str, "Chunk | AgentrtError | KVEventBatch | None"]
"""A call's id, and a piece of its output, its error, or None for its end.

Events of the engine's prefix cache have `KV_EVENTS` instead of a call's id.
"""

PROGRESS = ""
"""The value that messages about the progress of the engine's start have instead of a call's id."""

_STARTS = "starting the process of the engine's actor, which imports vLLM on its node"


def _working_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # the folder was removed
        return None


def _waits_for(room: str) -> str:
    return f"{NO_ROOM_YET}: {room}; waiting for up to {_PLACE_S:g} s"


# -- the prompt of a call is sent once each way ----------------------------------------------


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


# -- in the process of the programs ----------------------------------------------------------


class RayEngine(Executor):
    """An `Executor` whose engine is an actor of ``cluster``.

    If the actor, its engine core or its node dies, all calls raise `EngineDiedError`. `pids` is
    empty until the engine has started.
    """

    def __init__(self, options: EngineOptions, cluster: Cluster) -> None:
        self.options = options
        models = (options.model,) if options.model else ()
        self._info = ExecutorInfo(
            models, options.max_num_seqs, cached_blocks=True, logprobs=reports_logprobs(options)
        )
        self._cluster = cluster
        self._joined = False
        self._actor: ActorHandle[Any] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._queues: dict[str, asyncio.Queue[Chunk | AgentrtError | None]] = {}
        self._stopped: dict[str, ObjectRef | None] = {}
        """The actor's answers to `EngineActor.stop`, by the ids of the calls whose reports were not
        requested yet.
        """
        self._fault: EngineDiedError | None = None
        self._pids: list[int] = []
        self._hasher: BlockHasher | None = None
        self._on_kv_events: KVEventListener | None = None
        self._weights = Weights()
        self._paused = False
        self._notes = Outbox(lambda notes: self._ask("notify", notes))

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    # -- life --------------------------------------------------------------------------

    async def start(self, progress: Progress) -> None:
        progress("joining the cluster")
        await self._cluster.join()
        self._joined = True
        # Before the actor is placed, since its own resources would not count as free after that.
        had_room = await in_new_thread(self._cluster.has_room)
        room = await in_new_thread(self._cluster.room)
        actor = self._actor = self._cluster.place(EngineActor, self.options, _working_folder())
        progress(_STARTS if had_room else _waits_for(room))
        ready = asyncio.ensure_future(self._ask("__ray_ready__"))
        ready.add_done_callback(_seen)
        try:
            async with asyncio.timeout(_PLACE_S):
                await self._until_placed(actor, ready, progress, had_room=had_room)
                await ready
        except TimeoutError as error:
            room = await in_new_thread(self._cluster.room)
            if await in_new_thread(self._cluster.placed, actor) or await in_new_thread(
                self._cluster.has_room
            ):
                raise EngineStartError(
                    f"the process of the engine's actor was not ready within {_PLACE_S:g} s, "
                    f"although a node had room: {room}; see the logs of Ray's workers on the "
                    "nodes, and check that each node can import agentrt and vLLM in that time"
                ) from error
            raise NoRoomError(
                f"no node of the cluster had room within {_PLACE_S:g} s: {room}; use fewer "
                "--replicas, add nodes, or stop other work on the cluster"
            ) from error
        finally:
            ready.cancel()
        progress("starting on its node")
        with tracking.outside():
            self._reader = asyncio.create_task(self._read_outputs(progress), name="agentrt/ray")
        self._info, self._pids = await self._ask("start")

    async def _until_placed(
        self,
        actor: ActorHandle[Any],
        ready: asyncio.Future[Any],
        progress: Progress,
        *,
        had_room: bool,
    ) -> None:
        """Wait until a node has taken the actor or the actor is ready, and report when what the
        actor waits for changes.
        """
        clock = asyncio.get_running_loop().time
        began, waits = clock(), not had_room
        while not (await asyncio.wait([ready], timeout=_POLL_S))[0]:
            try:
                is_placed = await in_new_thread(self._cluster.placed, actor)
            except EngineStartError:  # the cluster is slow to answer; ask again
                continue
            if is_placed:
                if waits:
                    progress(_STARTS)
                return
            # Other work may have taken the room that was free before. The resources of this actor
            # are not free either, from when its process starts until `placed` knows the process.
            if not waits and clock() - began > _REGISTER_S:
                waits = not await in_new_thread(self._cluster.has_room)
                if waits:
                    progress(_waits_for(await in_new_thread(self._cluster.room)))

    def alive(self) -> bool:
        return self._fault is None

    def pids(self) -> list[int]:
        return self._pids

    async def close(self) -> None:
        self._die(EngineDiedError("the engine is not running"))
        await self._notes.close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()
            await asyncio.wait([reader])
        actor, self._actor = self._actor, None
        if actor is not None:
            await _end(actor, gracefully=reader is not None)
        if self._joined:
            self._joined = False
            await self._cluster.leave()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if self._fault is not None:
            raise EngineDiedError(str(self._fault))
        queue = self._queues[call.call_id] = asyncio.Queue()
        over = answered = False
        prompt, begun = PromptRestorer(), None
        try:
            begun = self._tell("begin", without_copies(call), stream)
            while not over:
                output = await queue.get()
                over = not isinstance(output, Chunk)
                if isinstance(output, Chunk):
                    answered = output.reply is not None
                    yield prompt.restored(output)
                elif output is not None:
                    raise output
        finally:
            self._queues.pop(call.call_id, None)
            # A call with a reply ends by itself, and nobody asks for its report by `aborted`.
            if not (over or answered) and self._fault is None:
                self._stopped[call.call_id] = self._tell("stop", call.call_id, begun)

    async def _read_outputs(self, progress: Progress) -> None:
        """Pass the actor's outputs to the calls that wait for them, until the actor dies."""
        try:
            while True:
                for call_id, output in await self._ask("collect"):
                    queue = self._queues.get(call_id)
                    if queue is not None:
                        queue.put_nowait(output)
                    elif call_id == PROGRESS:
                        progress(output.text)
                    elif call_id == KV_EVENTS and self._on_kv_events is not None:
                        self._on_kv_events(output)
        except AgentrtError as error:
            self._die(EngineDiedError(str(error)))

    def _die(self, fault: EngineDiedError) -> None:
        if self._fault is None:
            self._fault = fault
        for queue in self._queues.values():
            queue.put_nowait(EngineDiedError(str(self._fault)))

    # -- front ends --------------------------------------------------------------------

    async def front_setups(self) -> tuple[FrontSetup, ...]:
        await in_new_thread(import_module, "vllm.config")  # needed to unpickle the setups
        setups: tuple[FrontSetup, ...] = await self._ask("front_setups")
        return setups

    async def add_adapter(self, model: str, adapter: Any) -> None:
        await self._ask("add_adapter", model, adapter)

    # -- weights -----------------------------------------------------------------------

    @property
    def weights(self) -> Weights:
        return self._weights

    @property
    def paused(self) -> bool:
        return self._paused

    async def pause_generation(self, mode: PauseMode) -> None:
        self._paused = True
        await self._ask("pause_generation", mode)

    async def resume_generation(self) -> None:
        self._paused = False
        await self._ask("resume_generation")

    async def check_weights(self, folder: str) -> str:
        mark: str = await self._ask("check_weights", folder)
        return mark

    async def load_weights(self, weights: Weights, *, clear_cache: bool = False) -> None:
        await self._ask("load_weights", weights, clear_cache)
        self._weights = weights

    # -- the prefix cache --------------------------------------------------------------

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        return () if self._hasher is None else self._hasher(spec, self._weights.version)

    def on_kv_events(self, listener: KVEventListener) -> None:
        self._on_kv_events = listener

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        cached = await self._ask("cached_blocks")
        if cached is None:
            return None
        note, size, (algorithm, ahead) = cached
        if self._hasher is None:
            self._hasher = BlockHasher(algorithm, size, ahead)
        return note, size

    # -- control -----------------------------------------------------------------------

    async def aborted(self, call_id: str) -> CallReport:
        stopped = self._stopped.pop(call_id, None)
        report: CallReport = await self._ask("aborted", call_id, stopped)
        return report

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        await self._ask("end_program", program_id, totals)

    async def know(self, learned: Mapping[str, Any]) -> bool:
        return bool(await self._ask("know", dict(learned)))

    def notify(self, note: Notification) -> None:
        scheduling = self.options.scheduler
        if scheduling.retention != "lru" or scheduling.admission != "off":
            self._notes.post(note)

    async def snapshot(self) -> Mapping[str, Any]:
        snapshot: Mapping[str, Any] = await self._ask("snapshot")
        return snapshot

    async def metrics(self) -> Sequence[Metric]:
        metrics: Sequence[Metric] = await self._ask("metrics")
        return metrics

    async def cpu_seconds(self) -> float:
        return float(await self._ask("cpu_seconds"))

    async def _ask(self, method: str, *args: Any) -> Any:
        """Call a method of the actor. Raises the errors of `_translated`, and `EngineDiedError` if
        there is no actor.
        """
        if self._actor is None:
            raise EngineDiedError("the engine is not running")
        return await _translated(getattr(self._actor, method).remote(*args))

    def _tell(self, method: str, *args: Any) -> ObjectRef | None:
        """Call a method of the actor without waiting for its result. Return the reference to the
        result; None if the engine is dead.
        """
        if self._actor is None or self._fault is not None:
            return None
        reference: ObjectRef = getattr(self._actor, method).remote(*args)
        return reference


async def _translated(reference: ObjectRef) -> Any:
    """Await the result of a remote call. Raises the engine's errors that are an `AgentrtError`, and
    `EngineDiedError` in place of its other errors and of Ray's errors.

    If this is cancelled, Ray's own future is not cancelled, because Ray would log that as a fault.
    """
    from ray.exceptions import RayError, RayTaskError

    answer = asyncio.wrap_future(reference.future())
    answer.add_done_callback(_seen)
    try:
        return await asyncio.shield(answer)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, AgentrtError):
            raise cause from None
        raise EngineDiedError(f"{type(cause).__name__}: {cause}") from error
    except (RayError, ConnectionError) as error:
        raise EngineDiedError(
            f"the engine's actor or node is gone ({type(error).__name__})"
        ) from error


def _seen(answer: asyncio.Future[Any]) -> None:
    """Mark an answer's error as retrieved, even if no caller waits for it any more."""
    if not answer.cancelled():
        answer.exception()


async def _end(actor: ActorHandle[Any], *, gracefully: bool) -> None:
    """Stop the actor for good; with ``gracefully``, first let it close its engine's processes."""
    import ray

    if gracefully:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_S):
                await _translated(actor.close.remote())
    with contextlib.suppress(Exception):
        ray.kill(actor, no_restart=True)


# -- on the node -----------------------------------------------------------------------------


class EngineActor:
    """An engine in an async actor of Ray.

    `collect` returns the outputs of all calls since its last answer. While one answer is sent, the
    outputs for the next answer are gathered. So there is at most one round trip for each step of
    the engine, whatever the number of calls.

    The actor changes to the ``folder`` in which the program's process runs, if its node has this
    folder, so that relative paths of models, adapters and templates mean the same in both. Ray runs
    it in the folder in which its node was started.
    """

    def __init__(self, options: EngineOptions, folder: str | None = None) -> None:
        if folder is not None:
            with contextlib.suppress(OSError):
                os.chdir(folder)
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

    async def stop(self, call_id: str, begun: None = None) -> None:
        """Abort a call if it is still running.

        ``begun`` is the result of the call's `begin`. A caller on another node passes the reference
        to it, so that Ray runs this method after `begin`. Ray sends an argument of more than
        100 kB, such as a long prompt, apart from the request, and runs later requests meanwhile. A
        call that begins after it was aborted would run to its end.
        """
        task = self._calls.get(call_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def aborted(self, call_id: str, stopped: None = None) -> CallReport:
        """Abort a call, and return its report. ``stopped`` is the result of the call's `stop`, for
        the same reason as there.
        """
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
