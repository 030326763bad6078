"""An engine without a model: its answers are random words, and its steps are simulated.

The queues and the policy are the same as in a real engine. Memory is not simulated: contexts need
no KV cache.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from agentrt.errors import CallRejectedError, ConfigError, EngineDiedError
from agentrt.executors.base import Chunk, Executor, Progress
from agentrt.executors.info import ExecutorInfo
from agentrt.request import Call, CallReport, Reply
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import SchedulerCore
from agentrt.scheduler.events import (
    CallArrived,
    CallFinished,
    CallPreempted,
    CallStarted,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.policies import AttainedService
from agentrt.scheduler.state import QueuedCall
from agentrt.scheduler.table import ProgramTotals

_WORDS = ("lorem", "ipsum", "dolor", "sit", "amet", "elit", "sed", "eiusmod", "tempor", "magna")
_LEAST, _MOST = 12, 48
"""The minimum and maximum number of words of an answer whose length is not fixed. ``max_tokens``
may make the answer shorter.
"""
_KEPT = ("demotions", "promotions", "preemptions", "steps", "arrived_step", "level")
"""The fields of a call that its report contains unchanged."""


@dataclass(slots=True)
class _CallWork:
    """The remaining work of a call: the ``words`` to output, and the queue that receives them.

    The item None in the queue says that the engine has stopped before the call ended.
    """

    words: list[str]
    output: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)


class SimulatedEngine(Executor):
    """An engine that runs up to ``slots`` calls at the same time, ordered by ``scheduling``.

    Each step takes ``step_s`` seconds, and produces a word for each running call. The same call of
    the same program gets the same answer. Answers are plain text: a call that must obey a schema or
    call a tool is refused. ``clock`` returns the current time in seconds; with an event loop in
    virtual time, pass the loop's clock.
    """

    def __init__(
        self,
        scheduling: SchedulerConfig,
        *,
        slots: int = 4,
        step_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = slots
        self._clock = clock
        self._step_s = step_s
        self._steps = 0
        self._core = SchedulerCore(scheduling, slots=slots)
        self._running: list[QueuedCall] = []
        self._cut_off: dict[str, CallReport] = {}
        self._has_calls = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None

    @property
    def info(self) -> ExecutorInfo:
        return ExecutorInfo(("simulated",), self.slots)

    async def start(self, progress: Progress) -> None:
        self._stepping = asyncio.create_task(self._step_on(), name="simulated-engine")
        progress("the engine is ready")

    async def close(self) -> None:
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.wait([self._stepping])

    async def configure(self, scheduling: SchedulerConfig) -> None:
        """Change the scheduler's settings, and forget what it has learned.

        Raises `ConfigError` if calls are unfinished.
        """
        if self._core.calls:
            raise ConfigError(
                f"{len(self._core.calls)} calls are unfinished; change the settings when these "
                "calls have ended"
            )
        self._core = SchedulerCore(scheduling, slots=self.slots)

    async def forget_prefixes(self) -> None:
        """Do nothing: this engine has no cache."""

    def alive(self) -> bool:
        return self._stepping is not None and not self._stepping.done()

    # -- calls -------------------------------------------------------------------------

    async def generate(self, call: Call, *, stream: bool) -> AsyncGenerator[Chunk, None]:
        if not self.alive():
            raise EngineDiedError("the simulated engine is not running")
        words = _words_for(call)
        queued, pieces, count = self._arrived(call, words), list[str](), len(words)
        is_read = False
        try:
            while len(pieces) < count:
                if (word := await queued.item.output.get()) is None:
                    raise EngineDiedError(f"the simulated engine stopped during {call.call_id}")
                pieces.append(f" {word}" if pieces else word)
                if stream:
                    yield Chunk(pieces[-1])
            is_read = True
        finally:
            self._left(queued)
            report = self._report(queued, len(pieces))
            if not is_read:
                self._cut_off[call.call_id] = report
        reply = Reply("".join(pieces), report=report)
        yield Chunk("" if stream else reply.text, reply)

    def _arrived(self, call: Call, words: list[str]) -> QueuedCall:
        identity, now = call.identity, self._clock()
        table = self._core.table
        row = table.get(identity.program_id) or table.start_program(
            identity.program_id,
            identity.program_type,
            now,
            tenant=identity.tenant,
            session=identity.session,
        )
        row.size_hint = identity.size_hint if row.size_hint is None else row.size_hint
        row.catch_up(identity.service_s, identity.program_path_s, identity.waiting_s)
        queued = QueuedCall(
            call.call_id, row, _CallWork(words), identity.path_s, now, node=identity.node
        )
        queued.arrived_step = self._steps + 1
        queued.max_tokens = call.spec.max_tokens or 0
        # An estimate: the number of words in the chat.
        chat = (str(message.get("content")) for message in call.spec.messages)
        queued.prompt_tokens = sum(len(text.split()) for text in chat)
        self._core.handle(CallArrived(queued, now))
        self._core.queue.put(queued)
        self._has_calls.set()
        return queued

    def _left(self, call: QueuedCall) -> None:
        """Remove a call that has ended or whose output is not read any more."""
        if call.call_id not in self._core.calls:
            return
        if call in self._running:
            self._running.remove(call)
        self._core.handle(CallFinished(call, self._clock()))

    def _report(self, call: QueuedCall, output_tokens: int) -> CallReport:
        return CallReport(
            service_s=call.served_s,
            waiting_s=call.waited_s,
            finished_step=self._steps,
            prompt_tokens=call.prompt_tokens,
            output_tokens=output_tokens,
            **{name: getattr(call, name) for name in _KEPT},
        )

    async def aborted(self, call_id: str) -> CallReport:
        return self._cut_off.pop(call_id, CallReport())

    async def end_program(self, program_id: str, totals: ProgramTotals | None = None) -> None:
        totals = totals or ProgramTotals(program_id, "")
        self._core.handle(ProgramEnded(totals, self._clock()))

    async def snapshot(self) -> Mapping[str, Any]:
        waiting = enumerate(self._core.in_order())
        return {
            "steps": self._steps,
            "sizes": {"max_num_seqs": self.slots},
            "named_levels": isinstance(self._core.policy, AttainedService),
            "programs": [row.program_id for row in self._core.table],
            "running": [_described(call) for call in self._running],
            "waiting": [{**_described(call), "ahead": index} for index, call in waiting],
            "requests": len(self._core.calls),
        }

    # -- steps -------------------------------------------------------------------------

    async def _step_on(self) -> None:
        try:
            while await self._has_calls.wait():
                began = self._clock()
                self._choose(began)
                await asyncio.sleep(self._step_s)
                self._end_step(began, self._clock())
        finally:
            for call in self._core.calls.values():
                call.item.output.put_nowait(None)

    def _choose(self, now: float) -> None:
        """Promote, preempt and start calls, as an engine does before a step."""
        core, running = self._core, self._running
        core.refresh_priorities(now)
        core.promote(now)
        running.sort(key=attrgetter("key"))
        for call, better in core.victims(running, self.slots - len(running)):
            running.remove(call)
            core.handle(CallPreempted(call, now, better=better))
            core.queue.put(call)
        while len(running) < self.slots and core.queue.head() is not None:
            running.append(call := core.queue.take())
            core.handle(CallStarted(call, now))

    def _end_step(self, began: float, now: float) -> None:
        running = list(self._running)
        self._steps += 1
        names = [call.call_id for call in running]
        self._core.handle(StepFinished(names, now - began, now, tokens=len(names)))
        for call in running:
            call.item.output.put_nowait(call.item.words.pop())
            if not call.item.words:
                self._left(call)
        if not self._core.calls:
            self._has_calls.clear()


def _described(call: QueuedCall) -> dict[str, Any]:
    names = ("call_id", "level", "promoted", "preemptions")
    return {"program_id": call.program.program_id, **{name: getattr(call, name) for name in names}}


def _words_for(call: Call) -> list[str]:
    """Return the words of an answer. Raises `CallRejectedError` if the answer must be JSON or a
    tool call.
    """
    spec, request = call.spec, call.spec.request or {}
    form = (request.get("response_format") or {}).get("type", "text")
    if form != "text" or request.get("tool_choice") not in (None, "auto", "none"):
        raise CallRejectedError(
            f"call {call.call_id} needs JSON or a tool call, but --engine simulated only generates "
            "plain text; run it with --engine vllm"
        )
    chance = random.Random(call.call_id)
    most = spec.max_tokens if spec.ignore_eos else chance.randint(_LEAST, _MOST)
    return chance.choices(_WORDS, k=min(most, spec.max_tokens))
