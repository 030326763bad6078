"""The probe, which measures every call from outside the scheduler, for any scheduler class.

vLLM's own scheduler reports little about a call, and does not report CPU time. While a `Probe` is
attached, it wraps the methods of a scheduler without changing any decision. vLLM's scheduler and
agentrt's are measured with the same probe, so that the results are comparable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

from agentrt.errors import InvariantError
from agentrt.executors.identity import from_extra_args
from agentrt.executors.vllm._compat.requests import Request, extra_args
from agentrt.executors.vllm._compat.scheduling import SchedulerOutput, computed_before, started
from agentrt.lab.engine.step_time import StepWork
from agentrt.request import CallReport
from agentrt.request.spans import DECODE, PREFILL

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler

UTILITY = "agentrt_probe"
"""The name by which a client calls `answer` in the engine core."""
_WATCHED = ("add_request", "schedule", "update_from_output", "_preempt_request")


@dataclass(slots=True, eq=False)
class _CallAccount:
    """The measurements of one request. `CallReport` explains the fields that both classes have."""

    name: str
    request: Request
    arrived_step: int
    waiting_since: float
    arrived_s: float
    first_s: float | None = None
    finished_step: int = 0
    service_s: float = 0.0
    waiting_s: float = 0.0
    steps: int = 0
    cached_tokens: int | None = None
    computed_at_stop: int = 0
    recomputed_tokens: int = 0

    def began(self, cached: int, now: float) -> None:
        """Record that the call started, for the first time or again. ``cached`` of its tokens were
        in the cache.
        """
        self.waiting_s += now - self.waiting_since
        if self.cached_tokens is None:
            self.cached_tokens = min(cached, self.request.num_prompt_tokens)
        else:
            self.recomputed_tokens += max(0, self.computed_at_stop - cached)

    def report(self, now: float) -> CallReport:
        """Return the report of the call. It has a span for the time until the first token, and a
        span for the time after the first token, if there is any.
        """
        request, first_s = self.request, now if self.first_s is None else self.first_s
        spans = [[PREFILL, first_s - self.arrived_s, 0, 0.0, 0, ()]]
        if now > first_s:
            spans.append([DECODE, now - first_s, 0, 0.0, 0, ()])
        return CallReport(
            service_s=self.service_s,
            waiting_s=self.waiting_s,
            preemptions=request.num_preemptions,
            steps=self.steps,
            arrived_step=self.arrived_step,
            finished_step=self.finished_step,
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=len(request.output_token_ids),
            cached_tokens=self.cached_tokens or 0,
            recomputed_tokens=self.recomputed_tokens,
            spans=spans,
        )


class Probe:
    """A probe that measures the calls of ``scheduler`` from `attach` to `detach`, in seconds of
    ``clock``.

    ``cpu_ns`` is the total CPU time that the calling thread spent in ``schedule`` and
    ``update_from_output``, and ``steps`` is the number of steps. With ``keep_steps``, ``samples``
    has the work and the seconds of each step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float] = time.monotonic,
        *,
        keep_steps: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._calls: dict[str, _CallAccount] = {}
        self._reports: dict[str, CallReport] = {}
        self._dispatched: dict[int, float] = {}
        self._last_update = 0.0
        self._keep_steps = keep_steps
        self.steps = 0
        self.cpu_ns = 0
        self.samples: list[tuple[int, int, int, float]] = []

    def attach(self) -> None:
        """Start measuring. Calls that the scheduler already has are not measured."""
        stands = (self._adding, self._scheduling, self._updating, self._preempting)
        for name, stand in zip(_WATCHED, stands, strict=True):
            # An attribute of the instance hides the method of the class until it is deleted.
            setattr(self._scheduler, name, stand(getattr(self._scheduler, name)))

    def detach(self) -> None:
        for name in _WATCHED:
            delattr(self._scheduler, name)

    def take(self, call_id: str) -> CallReport:
        """Remove and return the report of a finished call. ``call_id`` is the id that the client
        sent.
        """
        return self._reports.pop(call_id)

    def result(self) -> dict[str, Any]:
        """Return all reports and the CPU time as plain values, for another process."""
        return {
            "calls": {name: asdict(report) for name, report in self._reports.items()},
            "steps": self.steps,
            "cpu_us": self.cpu_ns / 1000,
            "samples": self.samples,
        }

    # -- wrapping the scheduler's methods ----------------------------------------------

    def _adding(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def add(request: Request, *args: Any, **kwargs: Any) -> Any:
            name = request.request_id
            own = from_extra_args(name, extra_args(request), None).call_id or name
            now = self._clock()
            self._calls[name] = _CallAccount(own, request, self.steps, now, now)
            return method(request, *args, **kwargs)

        return add

    def _scheduling(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            now = self._clock()
            began = time.thread_time_ns()
            output = method(*args, **kwargs)
            self.cpu_ns += time.thread_time_ns() - began
            if output.num_scheduled_tokens:
                self._began(output, now)
                self._dispatched[id(output)] = self._clock()
            return output

        return schedule

    def _updating(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def update(output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
            dispatched = self._dispatched.pop(id(output), None)
            if dispatched is not None:
                self._charge(output, dispatched)
            began = time.thread_time_ns()
            result = method(output, *args, **kwargs)
            self.cpu_ns += time.thread_time_ns() - began
            self._end(result)
            return result

        return update

    def _preempting(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def preempt(request: Request, *args: Any, **kwargs: Any) -> Any:
            watched = self._calls.get(request.request_id)
            if watched is not None:
                watched.waiting_since = self._clock()
                watched.computed_at_stop = request.num_computed_tokens
            return method(request, *args, **kwargs)

        return preempt

    # -- measurements ------------------------------------------------------------------

    def _began(self, output: SchedulerOutput, now: float) -> None:
        computed = computed_before(output)
        for name in started(output):
            watched = self._calls.get(name)
            if watched is not None:
                watched.began(computed[name], now)

    def _charge(self, output: SchedulerOutput, dispatched: float) -> None:
        """Charge the time of a step to every call in it. Steps in flight overlap, so the time of a
        step begins at the end of the previous step.
        """
        now = self._clock()
        seconds = now - max(dispatched, self._last_update)
        self._last_update = now
        self.steps += 1
        if self._keep_steps:
            work = StepWork.of(output.num_scheduled_tokens, computed_before(output))
            self.samples.append((*astuple(work), seconds))
        for name in output.num_scheduled_tokens:
            watched = self._calls.get(name)
            if watched is not None:
                watched.service_s += seconds
                watched.steps += 1
                watched.finished_step = self.steps

    def _end(self, outputs: Mapping[int, Any]) -> None:
        """Keep the reports of finished requests, and drop the requests."""
        now = self._clock()
        for output in (output for engine in outputs.values() for output in engine.outputs):
            watched = self._calls.get(output.request_id)
            if watched is None:
                continue
            if watched.first_s is None and output.new_token_ids:
                watched.first_s = now
            if output.finished:
                del self._calls[output.request_id]
                self._reports[watched.name] = watched.report(now)


_probes: dict[int, Probe] = {}  # by the id of the scheduler; an engine core has one scheduler


def answer(scheduler: Scheduler, op: str, keep_steps: Any = None) -> Any:
    """Handle a client's message: ``start`` starts a new probe, and ``stop`` ends the probe and
    returns its result.
    """
    probe = _probes.pop(id(scheduler), None)
    if probe is not None:
        probe.detach()
    if op == "start":
        _probes[id(scheduler)] = probe = Probe(scheduler, keep_steps=bool(keep_steps))
        probe.attach()
        return None
    if op != "stop" or probe is None:
        raise InvariantError(f"{op!r}: no probe was started")
    return probe.result()
