"""vLLM's scheduler, made to rank calls by their program.

`ProgramScheduler` is a subclass of vLLM's async scheduler, named to vLLM by ``scheduler_cls``.
Before a step it lets programs in, sorts the running calls so that vLLM's own memory preemption
meets the worst first, and preempts for better waiting calls; then vLLM schedules as ever. Settings
come in ``additional_config["agentrt"]``. With policy ``fcfs`` alone vLLM's own queue stays.
"""

from __future__ import annotations

from typing import Any

from agentrt.executors.vllm._compat.batches import read_together
from agentrt.executors.vllm._compat.core import install_control
from agentrt.executors.vllm._compat.pool import blocks_needed, free_blocks, running_needs
from agentrt.executors.vllm._compat.requests import Request, compiles_grammar, tokens_left
from agentrt.executors.vllm._compat.scheduling import (
    RequestQueue,
    SchedulerOutput,
    adapter_fits,
    admitted,
    free_slots,
    may_preempt,
    paused,
    preempt,
)
from agentrt.executors.vllm.bookkeeping import Bookkeeping
from agentrt.executors.vllm.queue import LevelRequestQueue, RunningCalls, put_in_order, take_out
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.records import QueuedCall

_STALE_CHECK_STEPS = 256
"""Steps between two looks for programs that were not heard of for long."""

install_control()
read_together()


class ProgramScheduler(Bookkeeping):
    """Program-aware scheduling inside vLLM's engine core."""

    waiting: RequestQueue

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dispatched: dict[int, float] = {}
        self._better: QueuedCall | None = None  # for whom we preempt now; None while vLLM does
        self._stock_waiting = self.waiting
        self.use(self.config)

    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        super().use(config, policy)
        self._moved: list[QueuedCall] = []
        levelled = self.queues.policy.levelled or self.queues.admission is not None
        self.waiting = LevelRequestQueue(self.queues) if levelled else self._stock_waiting

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        now = self.clock()
        self.retention.at(now)
        own_queue = isinstance(self.waiting, LevelRequestQueue)
        if isinstance(self.waiting, LevelRequestQueue):
            self.waiting.now = now
        if own_queue and self._moved:
            put_in_order(self.running, self._moved, self.queues.calls)
            self._moved = []
        if own_queue and not paused(self):
            self.queues.release(_may_be_offered)
            self.queues.promote(now)
            for one in self.queues.let_in(now, len(self.running)):
                self.notes.let_in(one, now)
            self._make_room(now)
        output = super().schedule(*args, **kwargs)
        for request_id in admitted(output):
            self._call_began(request_id, output.num_scheduled_tokens[request_id], now)
            if own_queue and (call := self.queues.calls.get(request_id)) is not None:
                self._moved.append(call)
        if output.num_scheduled_tokens:
            self._dispatched[id(output)] = self.clock()
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        dispatched = self._dispatched.pop(id(scheduler_output), None)
        if dispatched is not None:
            self._charge(scheduler_output, dispatched)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if not self.running:
            self._moved.clear()  # there is nothing to sort, and the last call must not be kept
        return outputs

    def _charge(self, output: SchedulerOutput, dispatched: float) -> None:
        """Charge the step's time to the calls in it; with steps in flight, none twice."""
        now, tokens = self.clock(), output.total_num_scheduled_tokens
        seconds = now - max(dispatched, self.last_update)
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))  # they cost no prefill
        self.last_update = now
        moved = self.queues.charge_step(output.num_scheduled_tokens, seconds, now, tokens - drafts)
        for call in moved:
            self.notes.moved(call, now)
        self._moved += moved
        self.steps += 1
        self.computed_tokens += tokens
        if self.steps % _STALE_CHECK_STEPS == 0:
            self._drop_silent(now)

    # -- preemption --------------------------------------------------------------------

    def _make_room(self, now: float) -> None:
        """Preempt running calls of a worse level for waiting calls of a better one."""
        calls = self.queues.calls
        head = self.queues.head() if self.running else None
        # The one comparison that nearly every step comes down to.
        if head is None or head.level >= calls[self.running[-1].request_id].level:
            return
        free, running = free_blocks(self), RunningCalls(self.running, calls)

        def needed(call: QueuedCall) -> int:
            return blocks_needed(self, call.item, free)

        def can_start(call: QueuedCall) -> bool:
            return adapter_fits(self, call.item)

        def victims(free_blocks: int) -> list[tuple[QueuedCall, QueuedCall]]:
            slots = free_slots(self)
            return self.queues.victims(running, slots, free_blocks, needed, self._spared, can_start)

        if not (chosen := victims(free)):
            return
        # What running calls take first, of this step and of the blocks, nobody can begin with.
        tokens, blocks = running_needs(self)
        if tokens - len(chosen) >= self.max_num_scheduled_tokens:
            return
        for call, better in victims(free - blocks) if blocks else chosen:
            call.gave_way_to = better.program.program_id
            self._preempt(call, better, now)

    def _spared(self, call: QueuedCall) -> bool:
        left = tokens_left(call.item)
        return left <= self.config.min_remaining_tokens or not may_preempt(self, call.item)

    def _preempt(self, call: QueuedCall, better: QueuedCall, now: float) -> None:
        take_out(self.running, call.item)
        queue = self.waiting
        assert isinstance(queue, LevelRequestQueue)
        # vLLM keeps its own victims out of the step that preempts them; ours are
        # preempted before the step begins, so the queue has to do it.
        queue.deferring, self._better = True, better
        preempt(self, call.item, now)
        queue.deferring, self._better = False, None

    def _preempt_request(
        self, request: Request, timestamp: float, *args: Any, **kwargs: Any
    ) -> None:
        call = self.queues.calls.get(request.request_id)
        if call is not None:
            call.computed_tokens = request.num_computed_tokens
            self.retention.stopped(call)
            now = self.clock()
            self.notes.stopped(call, now, self._better)
            # Whom we preempt, we preempt for a slot, and vLLM for memory.
            self.queues.call_preempted(call, now, for_memory=self._better is None)
        super()._preempt_request(request, timestamp, *args, **kwargs)


def _may_be_offered(call: QueuedCall) -> bool:
    """Whether a deferred call can start: no output of it is in flight, and its grammar is there."""
    return call.item.num_in_flight_tokens == 0 and not compiles_grammar(call.item)
