"""vLLM's scheduler, made to rank calls by their program.

`ProgramScheduler` is a subclass of vLLM's async scheduler, named to vLLM by
``scheduler_cls``. Before each step it promotes the starved, sorts the running calls so
that vLLM's own memory preemption meets the worst first, and preempts for better waiting
calls; then vLLM schedules as ever. Settings come in ``additional_config["agentrt"]``.
With policy ``fcfs`` vLLM's own queue stays and only the account is kept. It is long because
vLLM takes one class, whose methods both a step and the account of its calls hang on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from agentrt.executors.identity import RequestIdentity, from_extra_args
from agentrt.executors.memory import Memory
from agentrt.executors.vllm._compat.batches import read_together
from agentrt.executors.vllm._compat.core import install_control
from agentrt.executors.vllm._compat.grammars import compile_aside
from agentrt.executors.vllm._compat.pool import (
    all_blocks,
    blocks_needed,
    free_blocks,
)
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, compute_from
from agentrt.executors.vllm._compat.requests import Request, extra_args, tokens_left
from agentrt.executors.vllm._compat.scheduling import (
    AsyncScheduler,
    RequestQueue,
    SchedulerOutput,
    admitted,
    free_slots,
    may_preempt,
    preempt,
)
from agentrt.executors.vllm._compat.seeds import take_samples_back_by_state
from agentrt.executors.vllm.account import Account
from agentrt.executors.vllm.control import answer
from agentrt.executors.vllm.kv_events import KVEventLog
from agentrt.executors.vllm.processes import (
    die_with_parent,
    keep_heap_frozen,
    leave_interrupts_to_parent,
)
from agentrt.executors.vllm.queue import LevelRequestQueue, put_in_order, take_out
from agentrt.executors.vllm.retention import Retainer
from agentrt.executors.vllm.scored import COMPUTE_FROM
from agentrt.scheduler.admission import Admission, Capacity, make_admission
from agentrt.scheduler.call import QueuedCall
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.table import ProcessTable, ProgramTotals
from agentrt.scheduler.victims import Room

SETTINGS = "agentrt"
_STALE_CHECK_STEPS = 256
_KEPT_REPORTS = 1024
_BESIDE = 8
"""Calls of its program that a new one is compared with, the latest of those in the engine."""

install_control()
read_together()


class ProgramScheduler(AsyncScheduler):
    """Program-aware scheduling inside vLLM's engine core."""

    waiting: RequestQueue
    memory: Memory
    retainer: Retainer
    admission: Admission | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = dict((self.vllm_config.additional_config or {}).get(SETTINGS, {}))
        if settings.pop("embedded", False):
            leave_interrupts_to_parent()
            die_with_parent()
            keep_heap_frozen()
        take_samples_back_by_state()
        compute_from(self, COMPUTE_FROM)
        compile_aside(self, lambda request: _identity(request).tenant)
        self.clock: Callable[[], float] = time.monotonic
        self.table = ProcessTable()
        self.steps = self.computed_tokens = 0
        self._accounts: dict[str, Account] = {}
        self.kv_events = KVEventLog.of(self)
        self.aborted: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._dispatched: dict[int, float] = {}
        self._last_update = 0.0
        self._stock_waiting = self.waiting
        self.retainer = Retainer(self, SchedulerConfig())
        self.use(SchedulerConfig.from_dict(settings))

    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        """Start over with other settings, unless they are refused. No call may be unfinished.

        A ``policy`` that no name stands for can be given beside them.
        """
        if config.admission == "memory" and not caches_prefixes(self):
            config = replace(config, admission="off")  # no context is found again, member's or not
        slots = self.max_num_running_reqs
        capacity = Capacity(all_blocks(self), self.block_size, slots)
        self.admission = admission = make_admission(config, capacity)
        queues = LevelQueues(config, policy, slots=slots, admission=admission)
        self.memory = Memory(queues.policy, config.history)
        self.retainer.close()
        self.retainer = Retainer(self, config)
        self.memory.keep(self.retainer.gaps)
        self.config, self.queues = config, queues
        retains, admits = self.retainer.queue is not None, admission is not None
        self._own_queue = queues.policy.levelled or retains or admits
        self._moved: list[QueuedCall] = []
        if self._own_queue:
            costly = self._too_costly if retains and not admits else None
            self.waiting = LevelRequestQueue(queues, costly, self._kept_out)
        else:
            self.waiting = self._stock_waiting

    # -- vLLM's own calls, with an account kept ----------------------------------------

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self._open_account(request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        now = self.clock()
        self.retainer.at(now)
        if isinstance(self.waiting, LevelRequestQueue):
            # No output of a preempted call may be in flight any more.
            self.queues.release(lambda call: call.item.num_in_flight_tokens == 0)
            self.waiting.begin_step()
            self.queues.promote(now)
            if self.admission is not None:
                self._let_in(self.admission, now)
            self._make_room(now)
        output = super().schedule(*args, **kwargs)
        for request_id in admitted(output):
            self._begin(request_id, output.num_scheduled_tokens[request_id], now)
        if output.num_scheduled_tokens:
            self._dispatched[id(output)] = self.clock()
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        dispatched = self._dispatched.pop(id(scheduler_output), None)
        if dispatched is not None:
            self._charge_step(scheduler_output, dispatched)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        return outputs if self.kv_events is None else self.kv_events.attach(outputs)

    def _preempt_request(
        self, request: Request, timestamp: float, *args: Any, **kwargs: Any
    ) -> None:
        call = self.queues.calls.get(request.request_id)
        if call is not None:
            self.queues.stop(call, self.clock())
            account = self._accounts[request.request_id]
            account.computed_at_stop = request.num_computed_tokens
            self.retainer.blocks_freed(request, account.context)
            # Whom we preempt, we preempt for a slot, and vLLM for memory.
            ours = isinstance(self.waiting, LevelRequestQueue) and self.waiting.deferring
            if self.admission is not None and not ours:
                self.admission.call_preempted(call, self.clock())
        super()._preempt_request(request, timestamp, *args, **kwargs)

    def _connector_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        delay, params = super()._connector_finished(request)
        if (report := self._close_account(request)) is not None:
            params = {**(params or {}), SETTINGS: report}
        return delay, params

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        if done := super().reset_prefix_cache(*args, **kwargs):
            self.retainer.cache_emptied()
        return bool(done)

    # -- the step ----------------------------------------------------------------------

    def _make_room(self, now: float) -> None:
        """Preempt running calls of a worse level for waiting calls of a better one."""
        calls = self.queues.calls
        if self._moved:
            put_in_order(self.running, self._moved, calls)
            self._moved = []
        # Asked for its truth, the queue sets aside whom nobody should give way to.
        head = self.queues.head() if self.running and self.waiting else None
        # The one comparison that nearly every step comes down to.
        if head is None or head.level >= calls[self.running[-1].request_id].level:
            return
        running = [calls[request.request_id] for request in self.running]
        free = free_blocks(self)
        room = Room(lambda call: blocks_needed(self, call.item, free), self._spared)
        for call in self.queues.victims(running, free_slots(self), free, room):
            call.gave_way_to = head.program.program_id
            self._preempt(call, now)

    def _preempt(self, call: QueuedCall, now: float) -> None:
        request = call.item
        take_out(self.running, request)
        queue = self.waiting
        assert isinstance(queue, LevelRequestQueue)
        # vLLM keeps its own victims out of the step that preempts them; ours are
        # preempted before the step begins, so the queue has to do it.
        queue.deferring = True
        preempt(self, request, now)
        queue.deferring = False

    def _let_in(self, admission: Admission, now: float) -> None:
        """Offer the calls of the programs that become members of the working set."""
        self.queues.let_in(now, len(self.running))
        if admission.changed:
            self.retainer.members_changed(admission.changed)
            admission.changed = {}

    def _kept_out(self, call: QueuedCall) -> bool:
        """Whether a call waits outside the queue, since its program is no member."""
        return self.admission is not None and not self.admission.goes_on(call, self.clock())

    def _too_costly(self, call: QueuedCall) -> bool:
        """Whether a waiting call should not begin, since that would cost others too much."""
        # With nothing running nothing would end: it would wait for ever.
        if not self.running:
            return False
        account, most_s = self._accounts[call.call_id], self.config.retention_patience
        costly = partial(self.retainer.too_costly, call.item)
        return account.defers(costly, self.retainer.now, most_s)

    def _spared(self, call: QueuedCall) -> bool:
        left = tokens_left(call.item)
        return left <= self.config.min_remaining_tokens or not may_preempt(self, call.item)

    def _begin(self, request_id: str, scheduled: int, now: float) -> None:
        call = self.queues.calls.get(request_id)
        if call is None:
            return
        if self._own_queue:
            self._moved.append(call)
        # A streaming session that goes on: it kept its slot while it waited for input.
        if call.since is None:
            return
        self.queues.start(call, now)
        account = self._accounts[request_id]
        account.began(call, scheduled)
        if self.admission is not None:
            self.admission.call_began(call, account.cached_tokens or 0, now)

    def _charge_step(self, output: SchedulerOutput, dispatched: float) -> None:
        """Charge the step's time to the calls in it; with steps in flight, none twice."""
        now = self.clock()
        seconds = now - max(dispatched, self._last_update)
        self._last_update = now
        self.steps += 1
        self.computed_tokens += output.total_num_scheduled_tokens
        if self.admission is not None:
            tokens, count = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
            self.admission.step(seconds, tokens, count)
        self._moved += self.queues.charge_step(output.num_scheduled_tokens, seconds, now)
        if self.steps % _STALE_CHECK_STEPS == 0:
            for row in self.table.stale(now, self.config.stale_after_s):
                self.table.end_program(row.program_id)
                self.queues.program_lost(row)
                self.retainer.program_ended(row, now)
                self._leaves(row.program_id, now)

    # -- accounts ----------------------------------------------------------------------

    def _open_account(self, request: Request) -> None:
        now = self.clock()
        identity = _identity(request)
        row = self.table.get(identity.program_id)
        if row is None:
            row = self.table.start_program(
                identity.program_id,
                identity.program_type,
                now,
                tenant=identity.tenant,
                session=identity.session,
            )
        row.size_hint = identity.size_hint if row.size_hint is None else row.size_hint
        self.table.catch_up(row, identity.service_s, identity.program_path_s, identity.waiting_s)
        self.table.call_arrived(row, request.request_id, now)
        account = Account(identity, self.steps)
        if not identity.lone:
            account.context = self.retainer.call_arrived(row, request, now)
            account.returned_tokens = self.retainer.known_tokens(row, request)
        self._accounts[request.request_id] = account
        call = self.queues.add(
            request.request_id,
            row,
            request,
            identity.path_s,
            now,
            node=identity.node,
            prompt_tokens=request.num_prompt_tokens,
        )
        if self.admission is not None:
            others = (self.requests[one] for one in reversed(row.calls) if one in self.requests)
            beside = self.retainer.beside_tokens(request, islice(others, _BESIDE))
            self.admission.call_arrived(call, account.returned_tokens, beside, now)

    def _leaves(self, program_id: str, now: float) -> None:
        if self.admission is not None:
            self.admission.program_ended(program_id, now)

    def _close_account(self, request: Request) -> dict[str, Any] | None:
        """A request ended, one way or another. Its report, if its client asked for it."""
        call = self.queues.calls.get(request.request_id)
        if call is None:
            return None
        now = self.clock()
        self.queues.remove(call, now)
        account = self._accounts.pop(request.request_id)
        times = call.served_s, call.waited_s
        self.table.call_ended(call.program, request.request_id, now, call.path_s, *times)
        self.queues.call_ended(call, now)
        if self.admission is not None:
            self.admission.call_ended(call, request.num_computed_tokens, now)
        row = None if account.identity.lone else call.program
        self.retainer.call_ended(row, request, account.context, now)
        if account.identity.lone:
            self.end_program(ProgramTotals.of(call.program), now)
        elif call.program.program_id not in self.table:
            # It ended before its call: what was noted of it since then can go.
            self.queues.program_lost(call.program)
            self._leaves(call.program.program_id, now)
        if not account.identity.report:
            return None
        report = account.report(call, self.steps)
        if request.status.name == "FINISHED_ABORTED" and account.identity.call_id:
            self._keep(account.identity.call_id, report)
        return report

    def end_program(self, totals: ProgramTotals, now: float) -> None:
        """A program ended, having come to so much over all engines."""
        row = self.table.end_program(totals.program_id)
        if row is None:
            return
        self.table.catch_up(row, totals.service_s)
        self.retainer.program_ended(row, now)
        self._leaves(row.program_id, now)
        self.queues.program_ended(row, now)
        self.memory.ended()

    def boundary(self, notes: Sequence[Sequence[Any]]) -> None:
        """Tools and humans that programs began to wait for, or were answered by."""
        now = self.clock()
        self.retainer.boundary(notes, now)
        if self.admission is None:
            return
        for program_id, what, *_ in notes:
            if what in ("tool", "human"):
                expected_s = self.retainer.expected_s(program_id)
                self.admission.interrupt_began(program_id, what, expected_s, now)
            elif what in ("returned", "answered"):
                asked = "tool" if what == "returned" else "human"
                self.admission.interrupt_ended(program_id, asked, now)

    def shutdown(self) -> None:
        self.memory.save()
        super().shutdown()

    def _keep(self, call_id: str, report: dict[str, Any]) -> None:
        # An aborted request has no last output to carry its report: it waits here.
        self.aborted[call_id] = report
        while len(self.aborted) > _KEPT_REPORTS:
            self.aborted.popitem(last=False)

    def client_id(self, call: QueuedCall) -> str | None:
        """What the client calls a call; None where it gave no name."""
        return self._accounts[call.call_id].identity.call_id or None

    def control(self, op: str, argument: Any = None) -> Any:
        """Answer a client's message; `agentrt.executors.vllm.control` says which there are."""
        return answer(self, op, argument)


def _identity(request: Request) -> RequestIdentity:
    session_id = getattr(request, "session_id", None)
    return from_extra_args(request.request_id, extra_args(request), session_id)
