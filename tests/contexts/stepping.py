"""Engines for contexts that have vLLM's scheduler and KV cache, and instead of a model a rule."""

from __future__ import annotations

import asyncio
import zlib
from array import array
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrt.engines import ReplicaSet
from agentrt.executors.base import Chunk, Executor, KVEventListener, Notification
from agentrt.executors.chat_api import Answer, Caller, Frontend, FrontProfile, Request
from agentrt.executors.identity import to_extra_args
from agentrt.executors.info import ExecutorInfo
from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler
from agentrt.executors.vllm.reports import read_report
from agentrt.lab.engine.headless import BLOCK_SIZE, HeadlessEngine, make_request, make_scheduler
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.router import make_router
from agentrt.router.kv_events import KVEventBatch, short
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.table import ProgramTotals

_STUCK_STEPS = 10_000
MODEL = "stepped"


def next_token(ids: Sequence[int]) -> int:
    """What follows a text: its tokens decide, and nothing else."""
    return 1 + zlib.crc32(array("I", ids).tobytes()) % 499


def extended(ids: Sequence[int], count: int) -> tuple[int, ...]:
    """A text with the ``count`` tokens that follow it."""
    made = [*ids]
    for _ in range(count):
        made.append(next_token(made))
    return tuple(made)


class SteppedEngine(Executor):
    """Steps while there are calls, one pass of the event loop each; a step is a virtual second.

    ``preempted`` counts how often a call that ended had been preempted.
    """

    def __init__(self, config: SchedulerConfig, *, slots: int, blocks: int) -> None:
        self.scheduler = make_scheduler(
            ProgramScheduler,
            max_num_seqs=slots,
            blocks=blocks,
            max_model_len=(blocks - 1) * BLOCK_SIZE,
            kv_events=True,
            settings=config.to_dict(),
        )
        self.engine = HeadlessEngine(self.scheduler, token=self._token)
        self.slots, self.blocks, self.preempted = slots, blocks, 0
        self._ends: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._stepping: asyncio.Task[None] | None = None
        self._listener: KVEventListener | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo((MODEL,), self.slots, cached_blocks=True)

    def _token(self, request_id: str, index: int) -> int:
        return next_token(self.engine.requests[request_id].all_token_ids)

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        request = _request(call.call_id, call.spec, to_extra_args(call.identity))
        end = self._ends[call.call_id] = asyncio.get_running_loop().create_future()
        self.engine.submit(request)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._step())
        try:
            report = read_report(await end)
        finally:
            del self._ends[call.call_id]
            if not end.done() or end.cancelled():
                self.engine.abort(call.call_id)
        self.preempted += report.preemptions
        ids = tuple(request.output_token_ids)
        told = tuple(((token, 0.0),) for token in ids)
        reply = Reply("", "length", token_ids=ids, report=report, token_logprobs=told)
        yield Chunk("", reply, token_ids=ids)

    async def _step(self) -> None:
        try:
            idle = 0
            while self.engine.requests:
                idle = 0 if self._did_step() else idle + 1
                assert idle < _STUCK_STEPS, f"none of {len(self.engine.requests)} calls can run"
                await asyncio.sleep(0)
        except Exception as error:
            for end in (one for one in self._ends.values() if not one.done()):
                end.set_exception(error)

    def _did_step(self) -> bool:
        step = self.engine.step()
        for note in step.kv_events:
            if self._listener is not None:
                self._listener(KVEventBatch.from_wire(note))
        for name in step.finished:
            if not self._ends[name].done():  # else it was cancelled, and is not aborted yet
                self._ends[name].set_result(step.reports[name])
        return bool(step.scheduled or step.finished)

    async def aborted(self, call_id: str) -> CallReport:
        return read_report(self.scheduler.control("report", call_id) or {})

    def notify(self, note: Notification) -> None:
        self.scheduler.control("boundary", [tuple(note)])

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        self.scheduler.control("ends", [program_id if totals is None else tuple(totals)])

    async def snapshot(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.scheduler.control("snapshot")
        return found

    def block_hashes(self, spec: CallSpec) -> Sequence[int]:
        return [short(value) for value in _request("", spec, {}).block_hashes]

    def on_kv_events(self, listener: KVEventListener) -> None:
        self._listener = listener

    async def cached_blocks(self) -> tuple[KVEventBatch, int] | None:
        return KVEventBatch.from_wire(self.scheduler.control("cached_blocks")), BLOCK_SIZE


def _request(call_id: str, spec: CallSpec, extra: dict[str, Any]) -> Any:
    return make_request(
        call_id,
        spec.prompt_token_ids or (),
        BLOCK_SIZE,
        salt=spec.cache_salt,
        max_tokens=spec.max_tokens,
        ignore_eos=True,
        extra_args=extra,
    )


class SteppedReplicas(ReplicaSet):
    """Some of them behind a router, for contexts of token ids."""

    def __init__(self, count: int, config: SchedulerConfig, **engine: Any) -> None:
        self.engines = [SteppedEngine(config, **engine) for _ in range(count)]
        make: Callable[[int], Executor] = self.engines.__getitem__
        super().__init__(make, count, make_router("cost"), scheduling=config)

    def own_frontend(self, names: Sequence[str]) -> Frontend:
        return _TokensOnly()


class _TokensOnly(Frontend):
    async def chat(self, request: Request, caller: Caller) -> Answer:
        raise NotImplementedError

    def chat_stream(self, request: Request, caller: Caller) -> AsyncGenerator[Answer, None]:
        raise NotImplementedError

    def profile(self, model: str | None = None) -> FrontProfile:
        return FrontProfile(MODEL)

    def addressed(self, spec: CallSpec) -> CallSpec:
        return replace(spec, model=MODEL)
