"""An engine without a model: its answers are made up, and the times of its steps simulated.

The queues and the policy are the real ones. Memory is not simulated: no context takes room.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from agentrt.errors import CallRejectedError, EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallReport, CallSpec, Reply
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import AttainedService
from agentrt.scheduler.queues import LevelQueues, Room
from agentrt.scheduler.records import QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramTotals

_WORDS = ("lorem", "ipsum", "dolor", "sit", "amet", "elit", "sed", "eiusmod", "tempor", "magna")
_LEAST, _MOST = 12, 48
"""How many words an answer has that could have any number."""


@dataclass(slots=True)
class _Work:
    """What is left of a call: ``words`` to say, and where they go. None there ends the call."""

    words: list[str]
    prompt_tokens: int
    said: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)


class SimulatedEngine(Executor):
    """Runs ``slots`` calls at a time, ranked as ``scheduling`` says.

    Each step takes ``step_s`` seconds, and gives each running call one word. The same call, under
    the same program's id, gets the same answer. It makes up plain text only: a call that has to
    obey a schema, or to call a tool, is refused.
    """

    def __init__(
        self, scheduling: SchedulerConfig, *, slots: int = 4, step_s: float = 0.05
    ) -> None:
        self.slots = slots
        self._step_s = step_s
        self._queues = LevelQueues(scheduling, slots=slots)
        self._table = ProcessTable()
        self._running: list[QueuedCall] = []
        self._cut_off: dict[str, CallReport] = {}
        self._steps = 0
        self._has_calls = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(("simulated",), self.slots)

    async def start(self, progress: Progress) -> None:
        self._stepping = asyncio.create_task(self._step_on(), name="simulated-engine")
        progress("ready")

    async def close(self) -> None:
        stepping, self._stepping = self._stepping, None
        if stepping is not None:
            stepping.cancel()
            await asyncio.wait([stepping])

    def alive(self) -> bool:
        return self._stepping is not None and not self._stepping.done()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if not self.alive():
            raise EngineDiedError("the simulated engine is not running")
        queued = self._arrived(call)
        work: _Work = queued.item
        pieces, count = list[str](), len(work.words)
        try:
            while len(pieces) < count:
                if (word := await work.said.get()) is None:
                    raise EngineDiedError(f"the simulated engine stopped during {call.call_id}")
                pieces.append(word if not pieces else f" {word}")
                if stream:
                    yield Chunk(pieces[-1])
        finally:
            self._left(queued)
            if len(pieces) < count:
                self._cut_off[call.call_id] = self._report(queued, len(pieces))
        reply = Reply("".join(pieces), report=self._report(queued, len(pieces)))
        yield Chunk("" if stream else reply.text, reply)

    def _arrived(self, call: Call) -> QueuedCall:
        work, who, now = _work_of(call), call.identity, time.monotonic()
        row = self._table.get(who.program_id) or self._table.start_program(
            who.program_id, who.program_type, now, tenant=who.tenant, session=who.session
        )
        row.size_hint = who.size_hint if row.size_hint is None else row.size_hint
        self._table.catch_up(row, who.service_s, who.program_path_s, who.waiting_s)
        self._table.call_arrived(row, call.call_id, now)
        queued = QueuedCall(
            call.call_id,
            row,
            work,
            who.path_s,
            now,
            node=who.node,
            prompt_tokens=work.prompt_tokens,
            arrived_step=self._steps,
        )
        self._queues.call_arrived(queued, now)
        self._queues.put(queued)
        self._has_calls.set()
        return queued

    def _left(self, call: QueuedCall) -> None:
        """A call has ended, or nobody reads it any more."""
        if call.call_id not in self._queues.calls:
            return
        now, times = time.monotonic(), (call.served_s, call.waited_s)
        if call in self._running:
            self._running.remove(call)
        self._queues.remove(call, now)
        self._table.call_ended(call.program, call.call_id, now, call.path_s, *times)
        self._queues.call_ended(call, now)

    def _report(self, call: QueuedCall, said: int) -> CallReport:
        return CallReport(
            service_s=call.served_s,
            waiting_s=call.waited_s,
            demotions=call.demotions,
            promotions=call.promotions,
            preemptions=call.preemptions,
            steps=call.steps,
            arrived_step=call.arrived_step,
            finished_step=self._steps,
            level=call.level,
            prompt_tokens=call.prompt_tokens,
            output_tokens=said,
        )

    async def aborted(self, call_id: str) -> CallReport:
        return self._cut_off.pop(call_id, CallReport())

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        if (row := self._table.end_program(program_id)) is not None:
            self._table.catch_up(row, 0.0 if totals is None else totals.service_s)
            self._queues.program_ended(row, time.monotonic())

    # -- steps -------------------------------------------------------------------------

    async def _step_on(self) -> None:
        try:
            while True:
                await self._has_calls.wait()
                self._choose(began := time.monotonic())
                await asyncio.sleep(self._step_s)
                self._end_step(time.monotonic() - began)
                if not self._queues.calls:
                    self._has_calls.clear()
        finally:
            for call in self._queues.calls.values():
                call.item.said.put_nowait(None)

    def _choose(self, now: float) -> None:
        """Promote, preempt and admit, as an engine does before a step."""
        queues, running = self._queues, self._running
        queues.promote(now)
        running.sort(key=attrgetter("key"))
        for call in queues.victims(running, self.slots - len(running), 0, Room()):
            running.remove(call)
            queues.call_preempted(call, now)
            queues.put(call)
        while len(running) < self.slots and queues.ready:
            running.append(call := queues.take())
            queues.call_began(call, now)

    def _end_step(self, seconds: float) -> None:
        now, running = time.monotonic(), list(self._running)
        self._steps += 1
        names = [call.call_id for call in running]
        self._queues.charge_step(names, seconds, now, tokens=len(names))
        for call in running:
            call.item.said.put_nowait(call.item.words.pop())
            if not call.item.words:
                self._left(call)

    async def snapshot(self) -> Mapping[str, Any]:
        waiting = self._queues.in_order()
        return {
            "steps": self._steps,
            "levelled": isinstance(self._queues.policy, AttainedService),
            "programs": [row.program_id for row in self._table],
            "running": [_described(call) for call in self._running],
            "waiting": [{**_described(call), "ahead": i} for i, call in enumerate(waiting)],
            "requests": len(self._queues.calls),
        }


def _described(call: QueuedCall) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "program_id": call.program.program_id,
        "level": call.level,
        "promoted": call.promoted,
        "preemptions": call.preemptions,
    }


def _work_of(call: Call) -> _Work:
    """What to say to a call. Raises `CallRejectedError` where plain text is no answer."""
    spec = call.spec
    request = spec.request or {}
    form = (request.get("response_format") or {}).get("type", "text")
    if form != "text" or request.get("tool_choice") not in (None, "auto", "none"):
        raise CallRejectedError(
            f"call {call.call_id} needs JSON or a tool call, and --engine simulated makes up plain "
            "text: run it with --engine vllm"
        )
    chance = random.Random(call.call_id)
    most = spec.max_tokens if spec.ignore_eos else chance.randint(_LEAST, _MOST)
    words = chance.choices(_WORDS, k=min(most, spec.max_tokens))
    return _Work(words, _prompt_tokens(spec))


def _prompt_tokens(spec: CallSpec) -> int:
    """About so many: the words of the chat."""
    return sum(len(str(message.get("content")).split()) for message in spec.messages)
