"""What the engine core knows of programs and calls: records, reports, what was learned.

`Bookkeeping` is vLLM's async scheduler that notes what happens in it, once each, and answers
clients' messages. It decides nothing: `ProgramScheduler` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agentrt.executors.history import HistoryFile
from agentrt.executors.identity import RequestIdentity, from_extra_args
from agentrt.executors.vllm._compat.grammars import compile_aside
from agentrt.executors.vllm._compat.pool import context_blocks
from agentrt.executors.vllm._compat.prefixes import caches_prefixes, compute_from
from agentrt.executors.vllm._compat.requests import Request, extra_args
from agentrt.executors.vllm._compat.scheduling import AsyncScheduler, SchedulerOutput
from agentrt.executors.vllm._compat.seeds import take_samples_back_by_state
from agentrt.executors.vllm._compat.slots import shorten_allocation
from agentrt.executors.vllm.accounts import CallNotes
from agentrt.executors.vllm.control import answer
from agentrt.executors.vllm.kv_events import KVEventLog
from agentrt.executors.vllm.processes import (
    die_with_parent,
    keep_heap_frozen,
    leave_interrupts_to_parent,
)
from agentrt.executors.vllm.reports import AbortedReports, report_of
from agentrt.executors.vllm.retention import BlockRetention
from agentrt.executors.vllm.scored import COMPUTE_FROM
from agentrt.scheduler.admission import Capacity
from agentrt.scheduler.by_name import make_retention
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.queues import LevelQueues
from agentrt.scheduler.records import ProgramRow, QueuedCall
from agentrt.scheduler.table import ProcessTable, ProgramTotals

SETTINGS = "agentrt"


class Bookkeeping(AsyncScheduler):
    """vLLM's scheduler, with a table of programs, queues that hear of its calls, and reports."""

    queues: LevelQueues
    history: HistoryFile
    retention: BlockRetention
    notes: CallNotes

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = dict((self.vllm_config.additional_config or {}).get(SETTINGS, {}))
        if settings.pop("embedded", False):
            leave_interrupts_to_parent()
            die_with_parent()
            keep_heap_frozen()
        take_samples_back_by_state()
        shorten_allocation(self)
        compute_from(self, COMPUTE_FROM)
        compile_aside(self, lambda request: _identity(request).tenant)
        self.clock: Callable[[], float] = time.monotonic
        self.table = ProcessTable()
        self.steps = self.computed_tokens = 0
        self.last_update = 0.0
        self.kv_events = KVEventLog.of(self)
        self.aborted = AbortedReports()
        self.config = SchedulerConfig.from_dict(settings)

    def use(self, config: SchedulerConfig, policy: Policy | None = None) -> None:
        """Start over with other settings, unless they are refused. No call may be unfinished.

        A ``policy`` that no name stands for can be given beside them.
        """
        if config.admission == "memory" and not caches_prefixes(self):
            config = replace(config, admission="off")  # no context is found again, member's or not
        slots = self.max_num_running_reqs
        capacity = Capacity(context_blocks(self), self.block_size, slots)
        queues = LevelQueues(config, policy, slots=slots, capacity=capacity)
        self.history = HistoryFile(queues.policy, config.history_file, learns=queues.learns)
        if hasattr(self, "retention"):  # not the first time
            self.retention.close()
            for row in self.table:
                row.start_over()
        retention = make_retention(config, queues.learned)
        self.retention = BlockRetention(self, queues.owners, retention)
        self.config, self.queues = config, queues
        self.notes = CallNotes(self, queues)

    def control(self, op: str, argument: Any = None) -> Any:
        """Answer a client's message; `agentrt.executors.vllm.control` says which there are."""
        return answer(self, op, argument)

    # -- vLLM's own calls --------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        if request.request_id not in self.requests:
            self._call_arrived(request)
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        notes = self.notes
        notes.in_step = True
        output = super().schedule(*args, **kwargs)
        notes.in_step = False
        if notes.evicted or notes.gave_way:
            notes.settle(output)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: Any
    ) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self.notes.prefilling:
            self.notes.first_tokens(self.last_update)
        return outputs if self.kv_events is None else self.kv_events.attach(outputs)

    def _connector_finished(self, request: Request) -> tuple[bool, dict[str, Any] | None]:
        delay, params = super()._connector_finished(request)
        if (report := self._call_ended(request)) is not None:
            params = {**(params or {}), SETTINGS: report}
        return delay, params

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        if done := super().reset_prefix_cache(*args, **kwargs):
            self.retention.cache_emptied(self.table)
            self.notes.emptied(self.clock())
        return bool(done)

    def shutdown(self) -> None:
        self.history.save()
        super().shutdown()

    # -- calls -------------------------------------------------------------------------

    def _call_arrived(self, request: Request) -> None:
        now, identity = self.clock(), _identity(request)
        row = self.table.get(identity.program_id) or self._start_program(identity, now)
        if row.size_hint is None:
            row.size_hint = identity.size_hint
        self.table.catch_up(row, identity.service_s, identity.program_path_s, identity.waiting_s)
        self.table.call_arrived(row, request.request_id, now)
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
        if not row.lone:
            self.retention.at(now)
            self.retention.arriving(call)
        self.queues.call_arrived(call, now)
        self.notes.arrived(call, now)

    def _call_began(self, request_id: str, scheduled: int, now: float) -> None:
        """A call was admitted, with so many tokens ``scheduled`` in its first step."""
        call = self.queues.calls.get(request_id)
        # A streaming session that goes on kept its slot while it waited for input.
        if call is None or call.since is None:
            return
        # vLLM has counted this step's tokens as computed by now; the rest was cached.
        cached = call.item.num_computed_tokens - scheduled
        self.notes.began(call, now, cached)
        lost = 0
        if call.cached_tokens is None:
            call.cached_tokens = min(cached, call.prompt_tokens)
        else:
            lost = max(0, call.computed_tokens - cached)
            call.recomputed_tokens += lost
        self.queues.call_began(call, now)
        self.queues.computing(call, lost)

    def _call_ended(self, request: Request) -> dict[str, Any] | None:
        """A request ended, one way or another. Its report, if its client asked for it."""
        call = self.queues.calls.get(request.request_id)
        if call is None:
            return None
        now, identity, row = self.clock(), call.identity, call.program
        self.retention.at(now)
        call.computed_tokens = request.num_computed_tokens
        self.notes.ended(call, now)
        self.queues.remove(call, now)
        self.retention.stopped(call)
        self.retention.ended(call, identity.call_id)
        times = call.served_s, call.waited_s
        self.table.call_ended(row, call.call_id, now, call.path_s, *times)
        self.queues.call_ended(call, now)
        if row.lone:
            self.end_program(ProgramTotals.of(row), now)
        if not identity.report:
            return None
        report = report_of(call, self.steps)
        if request.status.name == "FINISHED_ABORTED" and identity.call_id:
            self.aborted.keep(identity.call_id, report)
        return report

    # -- programs ----------------------------------------------------------------------

    def _start_program(self, identity: RequestIdentity, now: float) -> ProgramRow:
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
        """A program ended, having come to so much over all engines."""
        row = self.table.end_program(totals.program_id)
        if row is None:
            return
        self.table.catch_up(row, totals.service_s)
        self.retention.at(now)
        self.queues.program_ended(row, now)
        if not row.lone:
            self.history.ended()

    def _drop_silent(self, now: float) -> None:
        """Drop the programs that were not heard of for ``stale_after_s``."""
        for row in self.table.stale(now, self.config.stale_after_s, in_tools=True):
            self.table.end_program(row.program_id)
            self.queues.program_lost(row, now)


def _identity(request: Request) -> RequestIdentity:
    session_id = getattr(request, "session_id", None)
    return from_extra_args(request.request_id, extra_args(request), session_id)
