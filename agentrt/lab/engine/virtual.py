"""A virtual engine: vLLM's real scheduler in virtual time, without a model.

agentrt's scheduler class, or vLLM's own, decides in each step which calls are in the batch, with
vLLM's real KV-cache manager. Prefix caching, chunked prefill, preemption and eviction are done by
vLLM's code. A `StepTimeModel` determines how long each step takes.
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
from agentrt.lab.engine.host_memory import HostMemory
from agentrt.lab.engine.step_time import StepTimeModel
from agentrt.request import Call, CallReport, Usage
from agentrt.router.kv_events import KVEventBatch
from agentrt.scheduler.config import SchedulerConfig
from agentrt.scheduler.policies import Policy
from agentrt.scheduler.table import ProgramTotals

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from agentrt.lab.engine.host import HostEngine, Link
    from agentrt.lab.engine.probe import Probe

_STOP = 2**41
"""The token with which a call stops before its limit. No text of `tokens` contains it."""
_STUCK_STEPS = 64
"""Number of empty steps in a row after which an engine counts as stuck."""
_RETRIED = 1
"""Number of empty steps in a row after which the next step may still have calls, because calls that
were preempted in the empty step may start again.
"""

StockPolicy = Literal["fcfs", "priority"]
"""The policies of vLLM's own scheduler (its option ``scheduling_policy``)."""


@dataclass(frozen=True, slots=True)
class PrioritizedCall(Call):
    """A call with a ``priority`` for vLLM's own scheduler. A lower priority goes first."""

    priority: int = 0


@dataclass(frozen=True, slots=True)
class VirtualOptions:
    """The sizes of an engine. Sizes that are not explained here are options of vLLM.

    The KV cache has ``kv_blocks`` blocks of ``block_size`` tokens. vLLM reserves one of the blocks.
    ``in_flight`` is the number of steps that are scheduled at a time; 2 means async scheduling.
    ``host`` is the host memory to which vLLM offloads; None means no offloading.
    """

    max_num_seqs: int = 64
    kv_blocks: int = 8192
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_model_len: int = 32768
    in_flight: int = 1
    host: HostMemory | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(
                    f"the virtual engine's {option.name} must be at least 1, not {value}"
                )
        room = (self.kv_blocks - 1) * self.block_size
        if room < self.max_model_len:
            raise ConfigError(
                f"a KV cache of {self.kv_blocks} blocks holds {room} tokens, less than the "
                f"{self.max_model_len} tokens that a call may have; raise kv_blocks or lower "
                "max_model_len"
            )


@dataclass(slots=True)
class EngineCounts:
    """The number of an engine's steps, and the usage of its finished calls.

    ``cpu_us`` is the scheduler's CPU time over all steps, in microseconds; None if it was not
    measured. ``loaded_tokens`` is the number of tokens that were copied from host memory, and
    ``stored_tokens`` the number of tokens that were copied to host memory.
    """

    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    cpu_us: float | None = None
    loaded_tokens: int = 0
    stored_tokens: int = 0

    def add(self, report: CallReport) -> None:
        self.usage += report


def sum_counts(each: Iterable[EngineCounts]) -> EngineCounts:
    """Return the sum of the counts of several engines, without CPU times."""
    counts = list(each)
    usage = sum((item.usage for item in counts), Usage())
    return EngineCounts(
        sum(item.steps for item in counts),
        usage,
        loaded_tokens=sum(item.loaded_tokens for item in counts),
        stored_tokens=sum(item.stored_tokens for item in counts),
    )


class VirtualEngine:
    """An engine that is driven step by step. Times are seconds of virtual time.

    ``scheduling`` has the settings of agentrt's scheduler, or is a policy of vLLM's own scheduler,
    which then runs unchanged. With the policy ``fcfs`` and its default retention and admission,
    agentrt's scheduler makes the same decisions as vLLM's. With ``kv_events``, the engine publishes
    the changes of its prefix cache, and ``events`` has the changes that the last step published.
    ``scheduler_cls`` is a subclass that replaces agentrt's scheduler class. ``policy`` replaces the
    policy that ``scheduling`` names. ``busy_s`` is the total time of all steps.
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
        how: dict[str, Any] = {
            "in_flight": options.in_flight,
            "step_s": step_time.seconds,
            "token": self._token,
        }
        self._host: HostEngine | None = None
        if options.host is None:
            self._engine = HeadlessEngine(self.scheduler, **how)
        else:
            from agentrt.lab.engine.host import with_host

            self._engine = self._host = with_host(self.scheduler, options.host, **how)
        self._outputs: dict[str, Sequence[int]] = {}
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
        """The next moment at which waiting calls may be admitted because time has passed.

        None if the engine is idle, if it has calls that can run, or if it is stuck.
        """
        core = getattr(self.scheduler, "core", None)  # vLLM's own scheduler has no core
        admission = None if core is None else core.admission
        if self._empty_steps <= _RETRIED or admission is None:
            return None
        moment: float = admission.next_moment()
        return None if moment == math.inf else moment

    def wait_until(self, now: float) -> None:
        """Advance the clock of an engine that is idle, or whose calls all wait until a point in
        time.
        """
        if self.busy and self.stands_until is None:
            raise InvariantError("a virtual engine that has something to do cannot wait")
        self._engine.now = max(self.now, now)
        if self._host is not None and not self.busy and self._host.link.next_end is not None:
            self._host.settle()

    def prepare(self, call: Call, prompt: Sequence[int], max_tokens: int | None = None) -> Request:
        """Return the call as a request of vLLM, with the hashes of its blocks.

        By default, the request generates exactly ``call.spec.max_tokens`` tokens. The argument
        ``max_tokens`` sets another limit; then pass to `submit` the number of tokens after which
        the model stops.
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
        """Submit a request that `prepare` of this engine, or of an equal engine, has made.

        The request generates the tokens ``output``. If ``output`` is empty, it generates tokens
        that are unique to the call (`output_token`). The model stops after ``stops_after`` tokens;
        with None, it stops at the request's limit.
        """
        if output:
            self._outputs[request.request_id] = output
        if stops_after is not None:
            self._stops_after[request.request_id] = stops_after
        self._engine.submit(request)

    def _token(self, call_id: str, index: int) -> int:
        if index + 1 == self._stops_after.get(call_id):
            return _STOP
        output = self._outputs.get(call_id)
        return output_token(call_id, index) if output is None else output[index]

    def step(self) -> dict[str, CallReport]:
        """Do one step, and return the reports of the calls that ended. Raises `InvariantError` if
        calls wait and none can run.
        """
        before = self.now
        step = self._engine.step()
        self.busy_s += self.now - before
        self.events = [KVEventBatch.from_wire(note) for note in step.kv_events]
        self.counts.steps += bool(step.scheduled)
        progress = step.scheduled or step.finished or self.now > before
        self._empty_steps = 0 if progress else self._empty_steps + 1
        if self._empty_steps > _STUCK_STEPS:
            raise InvariantError(f"{len(self._engine.requests)} calls wait and none can run")
        reports = {name: self._report(name, step.reports[name]) for name in step.finished}
        for name, report in reports.items():
            self._outputs.pop(name, None)
            self._stops_after.pop(name, None)
            self.counts.add(report)
        if self._host is not None:
            if not self.busy:
                self._host.settle()
            self._count_copies(self._host.link)
        return reports

    def _count_copies(self, link: Link) -> None:
        size = self.options.block_size
        self.counts.loaded_tokens = size * link.copies["load"].blocks
        self.counts.stored_tokens = size * link.copies["store"].blocks

    def _report(self, call_id: str, own: Mapping[str, Any]) -> CallReport:
        return read_report(own) if self._probe is None else self._probe.take(call_id)

    def boundary(self, program_id: str, change: str, name: str) -> None:
        """Handle the start or the end of a program's wait for a tool or a human. `Notification`
        explains the values of ``change``.
        """
        self._tell("boundary", [(program_id, change, name)])

    def end_program(self, totals: ProgramTotals) -> None:
        self._tell("ends", [totals])

    def _tell(self, op: str, argument: Any) -> Any:
        if self._probe is None:  # agentrt's scheduler; vLLM's own ignores programs
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
    from agentrt.executors.vllm.engine_core.scheduler import ProgramScheduler

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
        vllm=_offloading(scheduling, options),
        **how,
    )
    if policy is not None:
        scheduler.use(scheduling, policy)
    return scheduler


def _offloading(
    scheduling: SchedulerConfig | StockPolicy, options: VirtualOptions
) -> dict[str, Any]:
    """Return the fields of vLLM's configuration for host memory; empty without host memory."""
    if options.host is None:
        return {}
    from agentrt.executors.vllm.options import HOST_TIER
    from agentrt.lab.engine.host import transfer_config

    ours = isinstance(scheduling, SchedulerConfig) and scheduling.retention != "lru"
    blocks = options.host.blocks(options.kv_blocks)
    return {"kv_transfer_config": transfer_config(blocks, HOST_TIER if ours else {})}


def output_token(call_id: str, index: int) -> int:
    """Return the token at ``index`` of a call's output. Two calls rarely generate the same token,
    because their first tokens are hashes of their ids.
    """
    return _first_token(f"output of {call_id}") + index


def tokens(name: str, start: int, end: int) -> list[int]:
    """Return the token ids from ``start`` to ``end`` of an endless text. Each ``name`` has its own
    text.
    """
    first = _first_token(name)
    return list(range(first + start, first + end))


@lru_cache(maxsize=4096)  # enough for all running calls; it is called for each of their tokens
def _first_token(name: str) -> int:
    return int.from_bytes(sha256(name.encode()).digest()[:5])
