"""A virtual engine: vLLM's real scheduling in virtual time, no model.

Our scheduler class, or vLLM's own, decides over vLLM's real KV-cache manager, step by
step, what a batch holds; prefix caching, chunked prefill, preemption and eviction are
vLLM's. A `StepTimeModel` says how long each step would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from agentrt.errors import ConfigError, InvariantError
from agentrt.executors.identity import to_extra_args
from agentrt.executors.vllm.reports import read_report
from agentrt.lab.engine.headless import (
    HeadlessEngine,
    make_request,
    make_scheduler,
    stock_scheduler,
)
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.request import Call, CallReport, Usage
from agentrt.router.kv_events import KVEventBatch
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from agentrt.lab.engine.probe import Probe

_STOP = 2**41
"""The token with which a model stops before the limit. No text here has it: see `tokens`."""
_STUCK_STEPS = 64
_RETRIED = 1
"""Empty steps after which another may hold calls: those that were preempted in one."""

StockPolicy = Literal["fcfs", "priority"]
"""What vLLM's own scheduler can order its waiting calls by: ``scheduling_policy``."""


@dataclass(frozen=True, slots=True)
class PrioritizedCall(Call):
    """A call with a ``priority`` for vLLM's own scheduler: lower goes first."""

    priority: int = 0


@dataclass(frozen=True, slots=True)
class VirtualOptions:
    """The engine's size, in vLLM's own words.

    ``kv_blocks`` of ``block_size`` tokens each are the KV cache; vLLM keeps one of them
    for itself. ``in_flight`` steps are under way at a time: 2 is async scheduling.
    """

    max_num_seqs: int = 64
    kv_blocks: int = 8192
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_model_len: int = 32768
    in_flight: int = 1

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) < 1:
                raise ConfigError(f"the virtual engine's {one.name} must be at least 1")
        room = (self.kv_blocks - 1) * self.block_size
        if room < self.max_model_len:
            raise ConfigError(
                f"a KV cache of {self.kv_blocks} blocks holds {room} tokens, less than the "
                f"{self.max_model_len} that one call may have; raise kv_blocks or lower "
                "max_model_len"
            )


@dataclass(slots=True)
class EngineCounts:
    """Steps, and what finished calls used.

    ``cpu_us`` is the scheduler's own CPU time over all steps in microseconds, None where it was
    not read.
    """

    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cpu_us: float | None = None

    @property
    def hit_share(self) -> float:
        """The share of prompt tokens that were found in the prefix cache."""
        return self.usage.cached_tokens / max(1, self.usage.prompt_tokens)

    def add(self, report: CallReport) -> None:
        self.usage += report


def sum_counts(each: Iterable[EngineCounts]) -> EngineCounts:
    """What several engines counted, together; CPU times are left out."""
    counts = list(each)
    usage = sum((one.usage for one in counts), Usage())
    return EngineCounts(sum(one.steps for one in counts), usage)


class VirtualEngine:
    """One engine, driven step by step. Times are seconds of virtual time.

    ``scheduling`` is our scheduler's settings, or the policy of vLLM's own scheduler,
    which then runs as it is. Ours decides exactly as that with policy ``fcfs``. With
    ``kv_events`` ours publishes what its prefix cache holds: ``events`` are those of the last
    step. ``busy_s`` are the seconds that its steps have taken. ``scheduler_cls`` is a subclass
    that takes our scheduler's place, and a ``policy`` replaces the one that
    ``scheduling`` names.
    """

    def __init__(
        self,
        scheduling: SchedulerConfig | StockPolicy,
        options: VirtualOptions,
        step_time: StepTimeModel,
        *,
        kv_events: bool = False,
        scheduler_cls: type[Any] | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.options = options
        self.scheduler = _scheduler(scheduling, options, scheduler_cls, policy, kv_events=kv_events)
        self.events: list[KVEventBatch] = []
        self.busy_s = 0.0
        self.counts = EngineCounts()
        self._empty_steps = 0
        self._engine = HeadlessEngine(
            self.scheduler, options.in_flight, step_time.seconds, self._token
        )
        self._told: dict[str, Sequence[int]] = {}
        self._stops_after: dict[str, int] = {}
        self._probe = None if isinstance(scheduling, SchedulerConfig) else self._watch()

    def _watch(self) -> Probe:
        from agentrt.lab.engine.probe import Probe

        probe = Probe(self.scheduler, lambda: self.now)
        probe.attach()
        return probe

    @property
    def now(self) -> float:
        return self._engine.now

    @property
    def busy(self) -> bool:
        return bool(self._engine.requests)

    @property
    def stands_until(self) -> float | None:
        """When calls may begin that cannot now, if nothing happens till then.

        None while it is idle or goes on, and where it is stuck.
        """
        core = getattr(self.scheduler, "core", None)  # stock's scheduler has none
        admission = None if core is None else core.admission
        if self._empty_steps <= _RETRIED or admission is None:
            return None
        moment: float = admission.next_moment()
        return None if moment == math.inf else moment

    def wait_until(self, now: float) -> None:
        """Let the clock of an engine jump forward that is idle or stands still."""
        if self.busy and self.stands_until is None:
            raise InvariantError("a virtual engine that has something to do cannot wait")
        self._engine.now = max(self.now, now)

    def prepare(self, call: Call, prompt: Sequence[int], max_tokens: int | None = None) -> Request:
        """The call as vLLM's request, which knows the hashes of its blocks.

        It generates exactly the ``max_tokens`` of the call. With another limit, the argument
        ``max_tokens``, `submit` must be told after how many tokens the model stops.
        """
        return make_request(
            call.call_id,
            prompt,
            self.options.block_size,
            max_tokens=max_tokens or call.spec.max_tokens,
            stop_token_ids=[_STOP] if max_tokens else None,
            ignore_eos=True,
            extra_args=to_extra_args(call.identity),
            priority=call.priority if isinstance(call, PrioritizedCall) else 0,
        )

    def submit(
        self, request: Request, output: Sequence[int] = (), stops_after: int | None = None
    ) -> None:
        """A request that `prepare` made arrives now, of this engine or of one like it. It generates
        ``output``, or what no other one does: see `output_token`. The model stops after
        ``stops_after`` tokens; with None it goes on to the request's limit.
        """
        if output:
            self._told[request.request_id] = output
        if stops_after is not None:
            self._stops_after[request.request_id] = stops_after
        self._engine.submit(request)

    def _token(self, call_id: str, index: int) -> int:
        if index + 1 == self._stops_after.get(call_id):
            return _STOP
        told = self._told.get(call_id)
        return output_token(call_id, index) if told is None else told[index]

    def step(self) -> dict[str, CallReport]:
        """One engine step. The calls that ended with it. Raises `InvariantError` if stuck."""
        before = self.now
        step = self._engine.step()
        self.busy_s += self.now - before
        self.events = [KVEventBatch.from_wire(note) for note in step.kv_events]
        self.counts.steps += bool(step.scheduled)
        self._empty_steps = 0 if step.scheduled or step.finished else self._empty_steps + 1
        if self._empty_steps > _STUCK_STEPS:
            raise InvariantError(f"{len(self._engine.requests)} calls wait and none can run")
        reports = {name: self._report(name, step.reports[name]) for name in step.finished}
        for name, report in reports.items():
            self._told.pop(name, None)
            self._stops_after.pop(name, None)
            self.counts.add(report)
        return reports

    def _report(self, call_id: str, own: Mapping[str, Any]) -> CallReport:
        return read_report(own) if self._probe is None else self._probe.take(call_id)

    def boundary(self, program_id: str, what: str, name: str) -> None:
        """A program began to wait for a tool or a human, or was answered: see `Retainer`."""
        self._tell("boundary", [(program_id, what, name)])

    def end_program(self, totals: ProgramTotals) -> None:
        self._tell("ends", [totals])

    def _tell(self, op: str, argument: Any) -> Any:
        if self._probe is None:  # vLLM's own scheduler knows no programs
            return self.scheduler.control(op, argument)
        return None


def _scheduler(
    scheduling: SchedulerConfig | StockPolicy,
    options: VirtualOptions,
    ours: type[Any] | None,
    policy: Policy | None,
    *,
    kv_events: bool,
) -> Any:
    from agentrt.executors.vllm.scheduler import ProgramScheduler

    cls: Any = stock_scheduler()
    how: dict[str, Any] = {"policy": scheduling}
    if isinstance(scheduling, SchedulerConfig):
        named = scheduling if policy is None else replace(scheduling, policy="fcfs")
        cls, how = ours or ProgramScheduler, {"settings": named.to_dict()}
    scheduler = make_scheduler(
        cls,
        max_num_seqs=options.max_num_seqs,
        blocks=options.kv_blocks,
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        kv_events=kv_events,
        **how,
    )
    if policy is not None:
        scheduler.use(scheduling, policy)
    return scheduler


def output_token(call_id: str, index: int) -> int:
    """The token at ``index`` of what a call generates: no two calls generate the same."""
    return _first_token(f"output of {call_id}") + index


def tokens(name: str, start: int, end: int) -> list[int]:
    """Token ids ``start`` to ``end`` of an endless text that belongs to ``name`` alone."""
    first = _first_token(name)
    return list(range(first + start, first + end))


@lru_cache(maxsize=4096)  # as many as run at once ask for each of their tokens
def _first_token(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:5])
