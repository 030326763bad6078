"""vLLM's scheduler with program-aware order: an adapter between vLLM and `SchedulerCore`.

`ProgramScheduler` is a subclass of vLLM's async scheduler, which vLLM loads by the option
``scheduler_cls``. It translates what vLLM does into events of the core. Before each step it gets a
plan from the core and applies the plan; then vLLM schedules as usual. The core decides, except for
what depends on vLLM's own state: from which point on a running call may be preempted
(`_EngineView.may_preempt`), which LoRA adapters fit (`AdapterPlaces`), and which waiting request
gives up its blocks if no request can start (`unblock_holders`). Its settings are in
``additional_config["agentrt"]``. With policy ``fcfs`` and without admission control, vLLM's own
waiting queue is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from typing_extensions import override

from agentrt.executors.history import HistoryFile
from agentrt.executors.identity import VLLM_KEY, RequestIdentity, from_extra_args
from agentrt.executors.vllm._compat.batches import read_together
from agentrt.executors.vllm._compat.core import install_control
from agentrt.executors.vllm._compat.grammars import compile_aside
from agentrt.executors.vllm._compat.offloading import (
    begin_turn,
    remove_fences_once,
    separates_salts,
    without_loading,
)
from agentrt.executors.vllm._compat.pool import (
    blocks_needed,
    cached_tokens,
    context_blocks,
    free_blocks,
    prefix_map,
    release_holder,
    running_needs,
    shorten_allocation,
    unblock_holders,
)
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, compute_from
from agentrt.executors.vllm._compat.requests import (
    Request,
    compiles_grammar,
    extra_args,
    tokens_left,
    waits_for_input,
)
from agentrt.executors.vllm._compat.sampling import correct_constrained_logprobs, mend_sampling
from agentrt.executors.vllm._compat.scheduling import (
    AsyncScheduler,
    RequestQueue,
    SchedulerOutput,
    begun_waiting,
    draining,
    free_slots,
    idle_sessions,
    keeping_output,
    load_ended,
    loading,
    lost_sessions,
    may_preempt,
    offering,
    paused,
    preempt,
    queue_session,
    shorten_steps,
    started,
)
from agentrt.executors.vllm.engine_core.block_retention import BlockRetention
from agentrt.executors.vllm.engine_core.call_notes import CallNotes
from agentrt.executors.vllm.engine_core.control import answer
from agentrt.executors.vllm.engine_core.kv_events import KVEventLog
from agentrt.executors.vllm.engine_core.request_queue import (
    AdapterPlaces,
    BegunRequests,
    LevelRequestQueue,
    RunningCalls,
    put_in_order,
    take_out,
)
from agentrt.executors.vllm.engine_core.weights import WeightVersions
from agentrt.executors.vllm.logprobs import COMPUTE_FROM, OF_MODEL
from agentrt.executors.vllm.processes import (
    die_with_parent,
    keep_heap_frozen,
    leave_interrupts_to_parent,
)
from agentrt.executors.vllm.reports import RecentReports, report_of
from agentrt.scheduler.admission import Capacity
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.core import Preempt, SchedulerCore
from agentrt.scheduler.events import (
    CallArrived,
    CallEvent,
    CallFinished,
    CallLoaded,
    CallLoading,
    CallPreempted,
    CallReranked,
    CallStarted,
    FirstToken,
    PreemptionReason,
    ProgramEnded,
    StepFinished,
)
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.retention import Retention, make_retention
from agentrt.scheduler.state import RUNNING, EngineProgram, QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramTotals

_STALE_CHECK_STEPS = 256
"""Number of steps between two searches for programs that have timed out."""

install_control()
read_together()


class ProgramScheduler(AsyncScheduler):
    """Program-aware scheduling inside vLLM's engine core."""

    waiting: RequestQueue
    core: SchedulerCore
    history: HistoryFile
    retention: BlockRetention
    notes: CallNotes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = dict((self.vllm_config.additional_config or {}).get(VLLM_KEY, {}))
        if settings.pop("embedded", False):
            leave_interrupts_to_parent()
            die_with_parent()
            keep_heap_frozen()
            # Small models may fill a JSON value with endless blanks. The option against this is set
            # here, after vLLM has validated its configuration: vLLM ignores the option in a call,
            # refuses it as a flag with the backend "auto", and refuses it when a draft model's
            # configuration is validated. It is not set for multimodal models, which are larger.
            if not self.vllm_config.model_config.is_multimodal_model:
                self.vllm_config.structured_outputs_config.disable_any_whitespace = True
        correct_constrained_logprobs(OF_MODEL)  # before the runner for CPUs is changed
        mend_sampling()
        shorten_allocation(self)
        shorten_steps(self)
        remove_fences_once(self)
        compute_from(self, COMPUTE_FROM)
        compile_aside(self, lambda request: _identity(request).tenant)
        self.clock: Callable[[], float] = time.monotonic
        self.table = ProcessTable(EngineProgram)
        self.steps = self.computed_tokens = 0
        self.last_update = 0.0
        self.kv_events = KVEventLog.of(self)
        self.recent_reports = RecentReports()
        self.weights = WeightVersions(self)
        self.config = SchedulerConfig.from_dict(settings)
        self._stock_waiting = self.waiting
        self._view = _EngineView(self)
        self._dispatched: dict[int, float] = {}
        """The time when each step in flight was sent to the model, by the `id` of its output."""
        self._prefilling: dict[QueuedCall, int] = {}
        """Running calls that have produced no output since their start, each with the number of
        output tokens that it had at the start.
        """
        self._loading: dict[QueuedCall, None] = {}
        """Calls whose load of KV cache is in flight."""
        self._preempted_sessions: dict[str, Request] = {}
        """Streaming sessions that were preempted while output of their turn was in flight."""
        self._stood_still = False
        """Whether the last step had no request."""
        self._moved: list[QueuedCall] = []
        """Running calls that may be at a wrong place in vLLM's list ``running``."""
        self.use(self.config)

    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        """Start over with other settings. There must be no unfinished call.

        ``policy`` replaces the policy that ``config`` names, for a policy without a name. Raises
        `ConfigError` for settings that are refused; the scheduler then keeps its present settings.
        """
        if config.admission == "memory" and not caches_prefixes(self):
            config = replace(config, admission="off")  # without a cache, no context is kept anyway
        slots = self.max_num_running_reqs
        capacity = Capacity(context_blocks(self), self.block_size, slots)
        core = SchedulerCore(config, policy, slots=slots, capacity=capacity, table=self.table)
        self.history = HistoryFile(core.policy, config.history_file, learns=core.learns)
        if hasattr(self, "retention"):  # false during the construction
            self.retention.close()
            for row in self.table:
                row.start_over()
        self.retention = BlockRetention(self, core.owners, self.retention_policy(core))
        self.config, self.core = config, core
        self.notes = CallNotes(self, core)
        self._running_calls = RunningCalls(self, core.calls)
        core.listeners = [self.retention, self.notes, self]
        self._moved = []
        self._adapters = AdapterPlaces(self, core)
        if core.policy.levelled or core.admission is not None:
            self.waiting = LevelRequestQueue(core, self._adapters.fit)
        else:  # vLLM's own queue has the policy's order, first come, first served
            self.waiting = self._stock_waiting

    def retention_policy(self, core: SchedulerCore) -> Retention | None:
        """Return the retention policy that the settings of ``core`` name; None for ``lru``. A
        subclass with a retention of its own overrides this method.
        """
        return make_retention(core.config, core.learned)

    @property
    def queues(self) -> SchedulerCore:
        """The core, under the name that it had before version 0.3. This name will be removed in
        version 0.4.
        """
        return self.core

    def control(self, op: str, argument: Any = None) -> Any:
        """Answer a client's message; see `agentrt.executors.vllm.engine_core.control`."""
        return answer(self, op, argument)

    # -- a step ----------------------------------------------------------------------------

    @override
    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Plan and schedule a step: apply the core's plan (`SchedulerCore.plan_step`), let vLLM
        take waiting calls in the core's order (`LevelRequestQueue`), and report to the core which
        calls began to load KV cache or started.

        vLLM's engine core calls this method before each step, and `update_from_output` after it.
        """
        now = self.clock()
        self.retention.at(now)
        if isinstance(self.waiting, LevelRequestQueue):
            self._prepare_step(self.waiting, now)
        while (holder := unblock_holders(self, stood_still=self._stood_still)) is not None:
            self._release(holder)
        begun = begun_waiting(self) if draining(self) else ()
        with offering(self, BegunRequests(self.waiting, begun)) if begun else nullcontext():
            output = super().schedule(*args, **kwargs)
        self.notes.settle(output)
        self._stood_still = not output.num_scheduled_tokens
        if self.connector is not None:
            self._note_loads(now)
        for request_id in started(output):
            self._call_started(request_id, output.num_scheduled_tokens[request_id], now)
        if output.num_scheduled_tokens:
            self._dispatched[id(output)] = self.clock()
        return output

    @override
    def get_num_unfinished_requests(self) -> int:
        # A pause with mode ``wait`` ends when no call is unfinished. During the pause, vLLM counts
        # only waiting calls that hold blocks. So it leaves out preempted calls, which have begun,
        # and subtracts sessions that wait for input although it has not counted those without
        # blocks.
        uncounted = len(begun_waiting(self)) + idle_sessions(self) if draining(self) else 0
        return int(super().get_num_unfinished_requests()) + uncounted

    @override
    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        # vLLM compares a waiting request's adapter with those of the requests that this step has
        # scheduled. A running request may be missing there: if no block can be freed for it until a
        # step in flight has ended, it is left out of this step. With its adapter, the next step
        # would have more adapters than vLLM allows, which ends the engine.
        return super()._handle_blocked_waiting_request(request) and self._adapters.fit(request)

    @override
    def _build_kv_connector_meta(self, connector: Any, scheduler_output: SchedulerOutput) -> Any:
        return super()._build_kv_connector_meta(connector, without_loading(self, scheduler_output))

    def _note_loads(self, now: float) -> None:
        """Report the calls whose load of KV cache has begun in this step."""
        for request in loading(self):
            call = self.core.calls.get(request.request_id)
            if call is not None and call not in self.core.loading:
                cached = cached_tokens(self, request)
                tokens = request.num_computed_tokens - cached
                self._loading[call] = None
                self.core.handle(CallLoading(call, now, cached, tokens))

    def _end_loads(self) -> None:
        """Report the calls whose load of KV cache has ended."""
        for call in [*self._loading]:
            if (success := load_ended(self, call.item)) is not None:
                del self._loading[call]
                self.core.handle(CallLoaded(call, self.clock(), not success))

    def _prepare_step(self, waiting: LevelRequestQueue, now: float) -> None:
        """Sort vLLM's running requests, and apply the core's plan for the next step."""
        waiting.now = now
        is_paused = paused(self)
        self._adapters.new_step(is_paused)
        calls = self.core.calls
        if self._moved:
            put_in_order(self.running, self._moved, calls)
            self._moved = []
        if is_paused:
            return
        plan = self.core.plan_step(now, self._running_calls, self._view)
        for decision in plan.preempted:
            self._preempt(decision, now)

    @override
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        """Report the end of a step to the core, which charges the step's time to its calls; let
        vLLM read the model's outputs and end calls (`_connector_finished`); then report first
        tokens and ended loads.
        """
        dispatched = self._dispatched.pop(id(scheduler_output), None)
        if dispatched is not None:
            self._step_finished(scheduler_output, dispatched)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._prefilling:
            self._end_prefills()
        if self._loading:
            self._end_loads()
        if self._preempted_sessions:
            self._keep_sessions()
        if not self.running:
            self._moved.clear()  # nothing is left to sort; a reference would keep the call alive
        return outputs if self.kv_events is None else self.kv_events.attach(outputs)

    def _keep_sessions(self) -> None:
        """Queue the preempted streaming sessions that vLLM has lost at the end of their turn."""
        for session in lost_sessions(self, self._preempted_sessions.values()):
            queue_session(self, session)
        for name, session in [*self._preempted_sessions.items()]:
            # vLLM does not count down the tokens in flight of a session that was aborted meanwhile.
            if session.is_finished() or not session.num_in_flight_tokens:
                del self._preempted_sessions[name]

    @override
    def _update_request_as_session(self, session: Request, update: Any) -> None:
        with keeping_output(session):
            super()._update_request_as_session(session, update)
        begin_turn(self, session)

    def _end_prefills(self) -> None:
        """Report the running calls that have produced their first token since they started."""
        for call, before in [*self._prefilling.items()]:
            if call.item.num_output_tokens > before:
                del self._prefilling[call]
                self.core.handle(FirstToken(call, self.last_update))

    def _step_finished(self, output: SchedulerOutput, dispatched: float) -> None:
        """Report the end of a step. ``dispatched`` is the time, in seconds, at which the step was
        sent to the model.

        The step's duration begins no earlier than the end of the step before it, so that the time
        of overlapping steps is not counted twice.
        """
        now, tokens = self.clock(), output.total_num_scheduled_tokens
        seconds = now - max(dispatched, self.last_update)
        # Draft tokens are not counted: they are no prefill.
        drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
        self.last_update = now
        self.core.handle(StepFinished(output.num_scheduled_tokens, seconds, now, tokens - drafts))
        self.steps += 1
        self.computed_tokens += tokens
        if self.steps % _STALE_CHECK_STEPS == 0:
            self.core.drop_stale(now)

    def hear(self, event: CallEvent) -> None:
        """Remember calls whose rank has changed, as a listener of the core."""
        if isinstance(event, CallReranked):
            self._moved.append(event.call)

    # -- calls -----------------------------------------------------------------------------

    @override
    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self._call_arrived(request)
        super().add_request(request)

    def _call_arrived(self, request: Request) -> None:
        now, identity = self.clock(), _identity(request)
        row = self.table.get(identity.program_id) or self._start_program(identity, now)
        if row.size_hint is None:
            row.size_hint = identity.size_hint
        row.catch_up(identity.service_s, identity.program_path_s, identity.waiting_s)
        call = QueuedCall(
            request.request_id,
            row,
            request,
            identity.path_s,
            now,
            node=identity.node,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            resumable=request.resumable,
            identity=identity,
            arrived_step=self.steps,
        )
        self.weights.arrived(call)
        if not row.lone:
            self.retention.at(now)
            self.retention.arriving(call)
        self.core.handle(CallArrived(call, now))

    def _call_started(self, request_id: str, scheduled: int, now: float) -> None:
        """Report that a request started, with ``scheduled`` tokens in its first step."""
        call = self.core.calls.get(request_id)
        if call is None:
            return
        if isinstance(self.waiting, LevelRequestQueue):
            self._moved.append(call)
        if call.since is None:  # a streaming session that continues has kept its slot
            return
        # vLLM counts this step's tokens as computed already; the rest was cached.
        cached = call.item.num_computed_tokens - scheduled
        self._prefilling[call] = call.item.num_output_tokens
        self.core.handle(CallStarted(call, now, cached))

    def _preempt(self, decision: Preempt, now: float) -> None:
        """Preempt a call in favour of a call with a higher priority, before vLLM's step begins.

        A request that vLLM itself preempts does not take part in that step. A call that is
        preempted here is deferred until it has no output in flight.
        """
        call = decision.call
        take_out(self.running, call.item)
        self._call_preempted(call, PreemptionReason.SLOT, decision.better)
        self.core.queue.put(call, deferred=True)
        preempt(self, call.item, now)

    def _release(self, request: Request) -> None:
        """Free the blocks of a waiting request: a streaming session that waits for the start of its
        next turn, or a request whose blocks were loaded.
        """
        call = self.core.calls[request.request_id]
        if call in self.core.loading:
            self.core.handle(CallLoaded(call, self.clock(), failed=True))
        else:
            self._call_preempted(call, PreemptionReason.MEMORY)
        release_holder(self, request)
        self.weights.preempted(call)

    @override
    def _preempt_request(
        self, request: Request, timestamp: float, *args: Any, **kwargs: Any
    ) -> None:
        call = self.core.calls.get(request.request_id)
        if call is not None and call.state is RUNNING:  # else the preemption is already reported
            self._call_preempted(call, PreemptionReason.MEMORY)
        if request.resumable and request.num_in_flight_tokens:
            self._preempted_sessions[request.request_id] = request
        super()._preempt_request(request, timestamp, *args, **kwargs)
        if call is not None:
            self.weights.preempted(call)

    def _call_preempted(
        self, call: QueuedCall, reason: PreemptionReason, better: QueuedCall | None = None
    ) -> None:
        self._prefilling.pop(call, None)
        call.computed_tokens = call.item.num_computed_tokens
        self.core.handle(CallPreempted(call, self.clock(), reason, better))

    @override
    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        if kwargs.get("reset_running_requests", bool(args and args[0])):
            for request in reversed(self.running):
                call = self.core.calls[request.request_id]
                self._call_preempted(call, PreemptionReason.RESET)
        before = prefix_map(self)
        done = super().reset_prefix_cache(*args, **kwargs)
        # vLLM also returns False if it has emptied the prefix cache, but not the connector's cache.
        if done or prefix_map(self) is not before:
            self._cache_emptied()
        return bool(done)

    def _cache_emptied(self) -> None:
        self.retention.cache_emptied(self.table)
        self.core.cache_emptied()
        self.notes.emptied(self.clock())

    def use_weights(self, version: int) -> None:
        """Note that the workers have loaded the weights of another version. Generation must be
        paused.
        """
        self.weights.update(version, self.core.calls.values())
        self.reset_encoder_cache()
        if not separates_salts(self):
            self.reset_connector_cache()
        self._cache_emptied()  # calls no longer find the blocks that are in the cache

    @override
    def _connector_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        # vLLM calls this method for every request that ends, for whatever reason.
        delay, params = super()._connector_finished(request)
        if (report := self._call_finished(request)) is not None:
            params = {**(params or {}), VLLM_KEY: report}
        return delay, params

    def _call_finished(self, request: Request) -> dict[str, Any] | None:
        """Report that a request ended. Return its report, if its client wants one, else None.

        vLLM's ``_free_request`` calls `_connector_finished`, which calls this, when a request stops
        or is aborted. The order is: the time of the call's last step was charged before
        (`_step_finished`), `SchedulerCore.handle` updates its parts, the report is made here, and
        then vLLM frees the blocks. `agentrt.scheduler.table` lists the functions through which the
        call's service then reaches the priority of the program's next call.
        """
        call = self.core.calls.get(request.request_id)
        if call is None:
            return None
        now = self.clock()
        self.retention.at(now)
        self._prefilling.pop(call, None)
        self._loading.pop(call, None)
        call.computed_tokens = request.num_computed_tokens
        self.core.handle(CallFinished(call, now))
        if not call.identity.report:
            return None
        report = report_of(call, self.steps)
        if call.identity.call_id:
            self.recent_reports.keep(call.identity.call_id, report)
        return report

    # -- programs --------------------------------------------------------------------------

    def _start_program(self, identity: RequestIdentity, now: float) -> EngineProgram:
        row = self.table.start_program(
            identity.program_id,
            identity.program_type,
            now,
            tenant=identity.tenant,
            session=identity.session,
        )
        row.lone = identity.lone
        return row

    def end_program(self, totals: ProgramTotals, now: float) -> None:
        """Report that a program ended. ``totals`` are its totals over all engines."""
        row = self.table.get(totals.program_id)
        if row is None:
            return
        self.retention.at(now)
        self.core.handle(ProgramEnded(totals, now))
        if not row.lone:
            self.history.ended()

    @override
    def shutdown(self) -> None:
        self.history.save()
        super().shutdown()


class _EngineView:
    """The state of vLLM's scheduler that `SchedulerCore.plan_step` asks for."""

    def __init__(self, scheduler: ProgramScheduler) -> None:
        self._scheduler = scheduler

    def may_be_offered(self, call: QueuedCall) -> bool:
        request = call.item
        if request.num_in_flight_tokens or compiles_grammar(request) or waits_for_input(request):
            return False
        return not call.stuck or self._scheduler._adapters.fitted(request)

    def free_slots(self) -> int:
        return free_slots(self._scheduler)

    def free_blocks(self) -> int:
        return free_blocks(self._scheduler)

    def blocks_needed(self, call: QueuedCall, free: int) -> int:
        return blocks_needed(self._scheduler, call.item, free)

    def can_start(self, call: QueuedCall) -> bool:
        return self._scheduler._adapters.justifies_preemption(call.item)

    def may_preempt(self, call: QueuedCall) -> bool:
        left = tokens_left(call.item)
        return left > self._scheduler.config.min_remaining_tokens and may_preempt(
            self._scheduler, call.item
        )

    def running_needs(self) -> tuple[int, int]:
        return running_needs(self._scheduler)

    def step_tokens(self) -> int:
        return int(self._scheduler.max_num_scheduled_tokens)


def _identity(request: Request) -> RequestIdentity:
    session_id = getattr(request, "session_id", None)
    return from_extra_args(request.request_id, extra_args(request), session_id)
