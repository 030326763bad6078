"""An `Executor` whose engine runs on a node of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrt import tracking
from agentrt.errors import AgentrtError, EngineDiedError, EngineStartError, NoRoomError
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
from agentrt.executors.ray.actor import PROGRESS, EngineActor, PromptRestorer, without_copies
from agentrt.executors.ray.cluster import Cluster
from agentrt.executors.vllm.calls import BlockHasher
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

_STARTS = "starting the process of the engine's actor, which imports vLLM on its node"


def _waits_for(room: str) -> str:
    return f"{NO_ROOM_YET}: {room}; waiting for up to {_PLACE_S:g} s"


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
        actor = self._actor = self._cluster.place(EngineActor, self.options)
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
        over, prompt = False, PromptRestorer()
        try:
            self._tell("begin", without_copies(call), stream)
            while not over:
                output = await queue.get()
                over = not isinstance(output, Chunk)
                if isinstance(output, Chunk):
                    yield prompt.restored(output)
                elif output is not None:
                    raise output
        finally:
            self._queues.pop(call.call_id, None)
            if not over:
                self._tell("stop", call.call_id)

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
        report: CallReport = await self._ask("aborted", call_id)
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

    def _tell(self, method: str, *args: Any) -> None:
        """Call a method of the actor without waiting for its result."""
        if self._actor is not None and self._fault is None:
            getattr(self._actor, method).remote(*args)


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
